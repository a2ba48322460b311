"""A small workload over every part of the system, each part behind a proxy of its own that may lose one message."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import msgspec

from feedback import AsyncFeedbackClient, FeedbackClient, LiveSessions, Put, SessionIdentity, keys
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
from tests.integration.rq_jobs import partition_of, set_up
from tests.outcomes import assert_sound
from tests.watching import RoundTrip, WatchingProxy
from worker import topology as topologies
from worker.process import run_worker

ROLES = ("worker", "projector", "client", "async client", "live host")
SESSIONS = ("a", "b")
LIVE = "live"
DEAD = "a-dead-worker"


class Lossy:
    """One run of the workload. What was sent is in the proxies' journals, by role."""

    def __init__(self, url: str, home: Path, *, resized: bool = False) -> None:
        """`resized`: at the end, the number of partitions is changed."""
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
        with FeedbackClient.from_url(self.proxies["client"].url) as client:
            yield from (client.result_of(command_id, timeout=20) for command_id in self._ids[:2])
            first = client.put("b", "m1", "positive", note="a note", command_id=self._new_id(), timeout=20)
            yield first
            assert client.result_of(self._ids[-1], timeout=20) == first
            yield from (ticket.result(20) for ticket in client.submit_many(self._requests("a"), durable=True))
            # The stream has lost what it had: the next acknowledgement has to mend it.
            self._redis.delete(keys.events(partition_of(self._settings, "a")))
            yield client.put("a", "m2", "negative", command_id=self._new_id(), timeout=20)
            yield from self._rate_live(client)
            yield client.list("a", timeout=20)
            self._redis.delete(keys.job(self._ids[-1]), keys.results(self._ids[-1]))
            yield client.result_of(self._ids[-1], timeout=20)
        yield from asyncio.run(self._work_by_asyncio())

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

    def _rate_live(self, client: FeedbackClient) -> Iterator[Result]:
        """A Session that a host holds open, and writes when it is asked to flush."""
        with (
            LogWriter(Path(self._settings.sessions), LIVE, created_at=CREATED_AT, cwd="/w") as log,
            LiveSessions.from_url(self.proxies["live host"].url) as live,
        ):

            def flush() -> int:
                if log.next_seq == 0:
                    log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
                return log.next_seq

            with live.register(LIVE, SessionIdentity(created_at=CREATED_AT, cwd="/w"), flush, timeout=20):
                yield client.put(LIVE, "m1", "positive", command_id=self._new_id(), timeout=20)

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


def _told(result: Result) -> Told:
    match result:
        case Ok(value=ItemList(items=items)):
            return (result.revision, *((item.message_id, item.rating, item.note) for item in items))
    return told(result)
