"""One store, and two servers that both think they are it: a split brain, and a failover that lost what it acknowledged.

The store is the arbiter of both (FAULTS, R7 and R8): what stands there is told to everybody, and nothing else.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import msgspec
import pytest
from redis import Redis

from app.embedded import VOLATILE, EmbeddedServer
from feedback import FeedbackClient, Item, Ok, Put, Rejected, Result, keys
from feedback.connection import connect
from feedback.events import FeedbackPut
from feedback.model import Rating
from feedback.results import VersionConflict
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.outcomes import assert_sound, published_events, stored_events
from tests.proxy import Proxy, Trap, names
from tests.watching import WatchingProxy

pytestmark = pytest.mark.server

Sent: TypeAlias = tuple[Put, Result]
SESSIONS = ("a", "b", "g", "h")
ROUNDS = 60


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URLs of two empty servers."""
    with ExitStack() as running:
        urls = []
        for name in ("one", "two"):
            server = EmbeddedServer(tmp_path / name, {**VOLATILE, "repl-diskless-sync-delay": "0"})
            server.start()
            running.callback(server.stop)
            urls.append(server.url)
        yield urls[0], urls[1]


@contextmanager
def clients(*urls: str) -> Iterator[list[tuple[Redis, FeedbackClient]]]:
    with ExitStack() as opened:
        yield [(opened.enter_context(connect(url)), opened.enter_context(FeedbackClient.from_url(url))) for url in urls]


def prepared(url: str, home: Path) -> Settings:
    settings = settings_for(url, home, partitions=2, lease_ttl=1.0, event_retention=1_000_000)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1", "m2")
    return settings


def put(session_id: str, message_id: str, rating: Rating, version: str | None = None) -> Put:
    return Put(session_id, message_id, rating, if_version=version, command_id=str(uuid4()))


def current_of(answer: Result) -> Item | None:
    """The item that stood there when this answer was given."""
    match answer:
        case Ok(value=Item() as item):
            return item
        case Rejected(error=VersionConflict(current=current)):
            return current
    raise AssertionError(answer)


def rate(client: FeedbackClient, session_id: str) -> list[Sent]:
    """Compare-and-set on one message, over and over."""
    sent: list[Sent] = []
    version: str | None = None
    ratings: Iterator[Rating] = itertools.cycle(("positive", "negative"))
    for request in (put(session_id, "m1", next(ratings), version) for _ in range(ROUNDS)):
        answer = client.submit(request).result(60)
        sent.append((request, answer))
        current = current_of(answer)
        version = None if current is None else current.version
    return sent


def assert_one_history(settings: Settings, sides: list[list[Sent]]) -> None:
    """One outcome a command, the one that its caller was told; one side an epoch; each message one register."""
    told = {str(request.command_id): (side, answer) for side, sent in enumerate(sides) for request, answer in sent}
    events = stored_events(settings)
    assert sorted(event.command_id for event in events) == sorted(told)
    worked: dict[tuple[int, int], set[int]] = defaultdict(set)
    epochs: dict[int, int] = {}
    revisions: Counter[str] = Counter()
    registers: dict[str, Item | None] = {}
    for event in events:
        assert event.epoch >= epochs.get(event.partition, 0), "an older epoch committed after a newer one"
        epochs[event.partition] = event.epoch
        side, answer = told[event.command_id]
        worked[event.partition, event.epoch].add(side)
        if isinstance(event, FeedbackPut):
            revisions[event.session_id] += 1
            registers[event.session_id] = event.item
        assert event.revision == answer.revision == revisions[event.session_id], "revisions are not dense"
        assert current_of(answer) == registers.get(event.session_id)
    assert all(len(found) == 1 for found in worked.values()), "both sides committed in one epoch"
    assert set.union(*worked.values()) == {0, 1}, "only one side worked"


def test_a_split_brain_has_one_history(servers: tuple[str, str], tmp_path: Path) -> None:
    """Half of the workers and of the clients on each server, on the same Sessions: everybody is answered.

    The sides fence each other off in turn. When one is given up, the other's streams get what it committed.
    """
    settings = prepared(servers[0], tmp_path)
    other = msgspec.structs.replace(settings, redis_url=servers[1])
    with clients(*servers) as both, serving(settings, projector=False):
        with serving(other, projector=False), ThreadPoolExecutor(2 * len(SESSIONS)) as threads:
            wait_until(lambda: all(redis.exists(keys.owners(1)) for redis, _ in both), "both sides have owners")
            running = [[threads.submit(rate, client, name) for name in SESSIONS] for _, client in both]
            sides = [[one for run in side for one in run.result()] for side in running]
        assert_one_history(settings, sides)
        redis, client = both[0]
        for request, answer in sides[1]:
            assert client.submit(request).result() == answer, "who comes over from the other side is told the same"
        last = [put(session_id, "m2", "positive") for session_id in SESSIONS]
        assert all(client.submit(request).result().ok for request in last)
        ids = [str(request.command_id) for request in (*last, *(one for side in sides for one, _ in side))]
        wait_until(lambda: len(published_events(redis, settings)) == len(ids), "the streams are whole")
        assert_sound(redis, settings, ids)


def held_back(proxy: Proxy, redis: Redis) -> Trap:
    """The worker, before it claims again: it is rung for, and comes around without work."""
    trap = proxy.hold_request(names("BLMOVE"))
    (worker,) = redis.smembers(keys.WORKERS)
    redis.rpush(keys.wake(worker.decode() if isinstance(worker, bytes) else worker), "look")
    trap.wait()
    return trap


def test_a_failover_may_lose_what_it_acknowledged(servers: tuple[str, str], tmp_path: Path) -> None:
    """The replica had fallen behind: answers, claims and events of the former primary are gone, the store has them.

    What had been answered is not done again where the replica still has it waiting, and is told again to whoever
    asks; what had not been is sent again by its id.
    """
    with clients(*servers) as both, WatchingProxy(servers[0]) as proxy:
        settings = prepared(proxy.url, tmp_path)
        (primary, _), (replica, _) = both
        waiting, *answered, lost = [put("a", message, "positive") for message in ("m1", "m2", "no-message", "m1")]
        with FeedbackClient.from_url(proxy.url) as client, serving(settings):
            before = put("b", "m1", "positive")
            assert client.submit(before).result().ok
            trap = held_back(proxy, primary)
            told = [client.submit(waiting)]
            replica.execute_command("REPLICAOF", *servers[0].removeprefix("redis://").removesuffix("/0").split(":"))
            wait_until(lambda: replica.exists(keys.job(str(waiting.command_id))), "the replica has it")
            replica.execute_command("REPLICAOF", "NO", "ONE")
            trap.release()
            told += client.submit_many(answered)
            answers = [ticket.result() for ticket in told]
            client.list("a", at_least=answers[-1].revision)
            trap = held_back(proxy, primary)
            client.submit(lost)
            trap.cut()
            primary.shutdown(nosave=True)
            proxy.redirect(servers[1])
            assert [client.result_of(ticket.command_id) for ticket in told] == answers
            assert [client.submit(request).result() for request in (waiting, *answered)] == answers
            assert not client.submit(lost).result().ok, "a conflict with what was applied before the failover"
            ids = [str(request.command_id) for request in (before, waiting, *answered, lost)]
            wait_until(lambda: len(published_events(replica, settings)) == len(ids), "the streams are whole")
            events = assert_sound(replica, settings, ids)
            assert events[-1].epoch > 1
            revision = max(event.revision for event in events if event.session_id == "a")
            assert {item.message_id for item in items_of(client.list("a", at_least=revision))} == {"m1", "m2"}
