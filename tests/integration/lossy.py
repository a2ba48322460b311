"""A small workload over every part of the system, each part behind a proxy of its own that may lose one message."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
import pytest
from redis.exceptions import RedisError

from feedback import (
    AsyncFeedbackClient,
    AsyncLiveSessions,
    FeedbackClient,
    LiveSessions,
    LogCorrupt,
    Put,
    SessionIdentity,
    keys,
)
from feedback.connection import connect
from feedback.model import Rating
from feedback.partitions import PartitionId
from feedback.requests import Delete, Request
from feedback.results import ItemList, Ok, Result
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from persistence.sidecar import open_store
from projections.process import run_projector
from tests.acceptance.disturbed import Told, told
from tests.harness import CREATED_AT, settings_for, wait_until, write_session
from tests.integration.rq_jobs import damaged_log, partition_of, set_up
from tests.outcomes import assert_sound
from tests.watching import RoundTrip, WatchingProxy
from worker import topology as topologies
from worker.dead_letters import DeadLetters
from worker.letters import choose_for_drop, choose_for_retry
from worker.process import run_worker

ROLES = ("worker", "projector", "client", "async client", "live host", "async live host", "operator")
SESSIONS = ("a", "b", "damaged")
LIVE = "live"
IDENTITY = SessionIdentity(created_at=CREATED_AT, cwd="/w")
DEAD = "a-dead-worker"
_SERVING = ("worker", "projector")

T = TypeVar("T")


class Lossy:
    """One run of the workload. What was sent is in the proxies' journals, by role."""

    def __init__(self, url: str, home: Path, role: str, *, resized: bool = False) -> None:
        """`role`: who may lose a message; only what that one has a part in is done. `resized`: at the end, the number
        of partitions is changed."""
        self._role = role
        self._url = url
        self._generations = {1: 2, 2: 3} if resized else {1: 2}
        self._redis = connect(url)
        self._redis.flushall()
        self.proxies = {role: WatchingProxy(url, role) for role in ROLES}
        self._journals = {role: proxy.journal for role, proxy in self.proxies.items()}
        self._settings = settings_for(
            url, home, partitions=2, lease_ttl=1.0, flush_timeout=0.3, max_attempts=1000, event_retention=1_000_000
        )
        for session_id in SESSIONS:
            write_session(self._settings, session_id, "m1", "m2")
        self._ids: list[str] = []

    def kinds(self, role: str) -> list[RoundTrip]:
        """What a role sent, in order."""
        return [kind for _, kind in self._journals[role]]

    def run(self) -> list[Told]:
        """The whole workload, then the checks; what the callers were told, in a fixed order."""
        set_up(self._redis, self._settings)
        if self._role == "worker":
            self._leave_claims_of_the_dead()
        with self._serving():
            answers = [_told(answer) for answer in self._work()]
            if len(self._generations) > 1:
                answers += map(_told, self._work_resized())
            wait_until(self._is_idle, "everything is finished")
        assert_sound(self._redis, self._settings, self._ids, self._generations)
        return answers

    def _leave_claims_of_the_dead(self) -> None:
        """Two commands that an owner claimed, over which it ended as another did before: they are tried alone."""
        with FeedbackClient(self._redis) as client:
            requests = [self._put("a", "m1", "positive"), self._put("a", "m2", "positive")]
            client.submit_many(requests)
        partition = partition_of(self._settings, "a")
        while self._redis.lmove(keys.queue(partition), keys.claimed(partition), "LEFT", "RIGHT"):
            pass
        self._redis.hset(keys.owners(1), str(partition.number), DEAD)
        self._redis.hset(keys.trials(1), str(partition.number), "")

    def _work(self) -> Iterator[Result]:
        parts: dict[str, Callable[[], Iterator[Result]]] = {
            "client": self._work_as_client,
            "async client": lambda: iter(asyncio.run(self._work_by_asyncio())),
            "live host": self._rate_live,
            "async live host": lambda: iter(asyncio.run(self._rate_live_by_asyncio())),
            "operator": self._operate,
        }
        # What those who serve have to do with is the same whether their callers run threads or asyncio.
        for role, part in parts.items():
            if self._role == role or (self._role in _SERVING and "async" not in role):
                yield from part()

    def _work_as_client(self) -> Iterator[Result]:
        with FeedbackClient.from_url(self.proxies["client"].url) as client:
            yield from [client.result_of(command_id, timeout=20) for command_id in self._ids]
            first = client.put("b", "m1", "positive", note="a note", command_id=self._new_id(), timeout=20)
            yield first
            assert client.result_of(self._ids[-1], timeout=20) == first
            yield from (ticket.result(20) for ticket in client.submit_many(self._requests("a"), durable=True))
            # The stream has lost what it had: the next acknowledgement has to mend it.
            self._redis.delete(keys.events(partition_of(self._settings, "a")))
            yield client.put("a", "m2", "negative", command_id=self._new_id(), timeout=20)
            yield client.list("a", timeout=20)
            self._redis.delete(keys.job(self._ids[-1]), keys.results(self._ids[-1]))
            yield client.result_of(self._ids[-1], timeout=20)

    async def _work_by_asyncio(self) -> list[Result]:
        async with AsyncFeedbackClient.from_url(self.proxies["async client"].url) as client:
            answers = [await client.put("b", "m2", "positive", command_id=self._new_id(), timeout=20)]
            answers.append(await client.result_of(self._ids[-1], timeout=20))
            tickets = await client.submit_many(self._requests("b"), durable=True)
            answers += [await ticket.result(20) for ticket in tickets]
            last = answers[0].revision
            answers.append(await client.list("b", at_least=last, timeout=20))
        return answers

    def _work_resized(self) -> list[Result]:
        """In the next generation, once the worker has found the former one empty."""
        with closing(open_store(self._settings.sidecar_url)) as store:
            topologies.change(self._redis, store, self._generations[2])
        with FeedbackClient.from_url(self.proxies["client"].url) as client:
            return [ticket.result(20) for ticket in client.submit_many([*self._requests("a"), *self._requests("b")])]

    @contextmanager
    def _held_open(self, session_id: str) -> Iterator[Callable[[], int]]:
        """A Session whose log is written when it is flushed, by what is given."""
        with LogWriter(Path(self._settings.sessions), session_id, created_at=CREATED_AT, cwd="/w") as log:

            def flush() -> int:
                if log.next_seq == 0:
                    log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
                return log.next_seq

            yield flush

    def _rate_live(self) -> Iterator[Result]:
        with (
            self._held_open(LIVE) as flush,
            FeedbackClient.from_url(self._url) as client,
            LiveSessions.from_url(self.proxies["live host"].url) as live,
            live.register(LIVE, IDENTITY, flush, timeout=20),
        ):
            yield client.put(LIVE, "m1", "positive", command_id=self._new_id(), timeout=20)

    async def _rate_live_by_asyncio(self) -> list[Result]:
        session_id = f"{LIVE}-by-asyncio"
        with self._held_open(session_id) as write:

            async def flush() -> int:
                return await asyncio.to_thread(write)

            async with (
                AsyncFeedbackClient.from_url(self._url) as client,
                AsyncLiveSessions.from_url(self.proxies["async live host"].url) as live,
                await live.register(session_id, IDENTITY, flush, timeout=20),
            ):
                return [await client.put(session_id, "m1", "positive", command_id=self._new_id(), timeout=20)]

    def _operate(self) -> Iterator[Result]:
        """Two commands failed. One is found, looked into and put back, the other one is dropped."""
        mended, dropped = (
            Put("damaged", message_id, "positive", command_id=str(uuid4())) for message_id in ("m1", "m2")
        )
        with FeedbackClient.from_url(self._url) as client, closing(connect(self.proxies["operator"].url)) as redis:
            with damaged_log(self._settings, "damaged"):
                for ticket in client.submit_many([mended, dropped]):
                    with pytest.raises(LogCorrupt):
                        ticket.result(20)
            dead = DeadLetters(redis)
            letters = {letter.job_id: letter for letter in _insist(lambda: list(dead.letters()))}
            assert letters.keys() == {mended.command_id, dropped.command_id}
            back = [letters[str(mended.command_id)]]
            assert "LogCorrupt" in (_insist(lambda: dead.traceback(back[0])) or "")
            _insist(lambda: dead.retry(choose_for_retry(dead.find([back[0].place.job_id]), 0).chosen))
            _insist(lambda: dead.drop(choose_for_drop([letters[str(dropped.command_id)]])))
            self._ids.append(str(mended.command_id))
            yield client.result_of(self._ids[-1], timeout=20)
            assert _insist(lambda: list(dead.letters())) == []

    def _requests(self, session_id: str) -> list[Request]:
        return [
            self._put(session_id, "m1", "negative"),
            self._put(session_id, "no-such-message", "positive"),
            Delete(session_id, "m2", if_version="stale", command_id=self._new_id()),
        ]

    def _put(self, session_id: str, message_id: str, rating: Rating) -> Put:
        return Put(session_id, message_id, rating, command_id=self._new_id())

    def _new_id(self) -> str:
        self._ids.append(str(uuid4()))
        return self._ids[-1]

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """A worker and a projector, each through its proxy; what one of them raised is raised at the end."""
        stop = threading.Event()
        running: dict[str, Callable[[Settings, threading.Event], None]]
        running = {
            "worker": run_worker,
            "projector": run_projector,
        }
        with ThreadPoolExecutor(len(running)) as threads:
            parts = [
                threads.submit(run, msgspec.structs.replace(self._settings, redis_url=self.proxies[role].url), stop)
                for role, run in running.items()
            ]
            try:
                yield
            finally:
                stop.set()
                # It would wait for events for a while yet. That, and how it ends then, is nothing of the workload.
                self._journals["projector"] = list(self.proxies["projector"].journal)
                self.proxies["projector"].cut_all()
        for part in parts:
            part.result()

    def _is_idle(self) -> bool:
        partitions = [PartitionId(one, number) for one, count in self._generations.items() for number in range(count)]
        return not self._redis.exists(*map(keys.queue, partitions), *map(keys.claimed, partitions))

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        self._redis.close()


def _insist(ask: Callable[[], T]) -> T:
    """What an operator does whose connection broke: run it again."""
    for _ in range(10):
        with suppress(RedisError):
            return ask()
    return ask()


def _told(result: Result) -> Told:
    match result:
        case Ok(value=ItemList(items=items)):
            return (result.revision, *((item.message_id, item.rating, item.note) for item in items))
    return told(result)
