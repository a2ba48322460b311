"""How long partitions wait for an owner, counted in the heartbeats of whoever takes them (DESIGN, "Ownership")."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, Put, Ticket, keys
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import send, worker_process
from tests.outcomes import assert_sound, is_idle, stored_events
from tests.watching import RoundTrip, WatchingProxy, is_kind
from worker.keeper import _BEATS_PER_TTL

pytestmark = pytest.mark.server

BEAT, CHANGE = "worker/heartbeat", "worker/assign"
SESSIONS = [f"session-{number}" for number in range(8)]


class Workers:
    """Workers behind proxies that share one journal; each is called by a name."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self.journal: list[tuple[str, RoundTrip]] = []
        self._settings = settings
        self._redis = redis

    @contextmanager
    def serving(self, name: str) -> Iterator[WatchingProxy]:
        with WatchingProxy(self._settings.redis_url, name, self.journal) as proxy:
            settings = msgspec.structs.replace(self._settings, redis_url=proxy.url)
            with serving(settings, projector=False):
                yield proxy

    def owners(self) -> list[bytes]:
        owners: list[bytes] = self._redis.hvals(keys.owners(1))  # type: ignore[assignment]  # redis-py types both its clients as one
        return owners

    def wait_for(self, *shares: int) -> None:
        """Until all partitions have owners, with these shares of them."""

        def shared() -> bool:
            owners = self.owners()
            return sorted(map(owners.count, set(owners))) == sorted(shares)

        wait_until(shared, f"shares of {shares}")

    def beats(self, name: str, since: int) -> int:
        """Heartbeats of a worker from a place in the journal on until it next changed leases."""
        mine = [kind for who, kind in self.journal[since:] if who == name]
        return mine[: mine.index(CHANGE)].count(BEAT)

    def first(self, name: str, kind: RoundTrip, since: int = 0) -> int:
        return self.journal.index((name, kind), since)


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1")
    return settings


@pytest.fixture
def workers(settings: Settings, redis_client: Redis) -> Workers:
    return Workers(settings, redis_client)


@pytest.mark.process
@pytest.mark.parametrize("expires", [True, False], ids=["its session expires", "its session stays for ever"])
def test_a_dead_workers_share_is_taken_over_within_a_lease(
    expires: bool, workers: Workers, settings: Settings, redis_client: Redis
) -> None:
    """And a beat or two. The server's clock may have jumped back: then it is the silence that tells."""
    with worker_process(settings) as process:
        workers.wait_for(settings.partitions)
        (dead,) = set(workers.owners())
        with workers.serving("next"):
            workers.wait_for(2, 2)
            send(process, signal.SIGSTOP)
            if not expires:
                assert redis_client.persist(keys.worker_session(dead.decode()))
            since = len(workers.journal)
            send(process, signal.SIGKILL)
            workers.wait_for(4)
            assert dead not in workers.owners()
            assert workers.beats("next", since) <= _BEATS_PER_TTL + 2


def test_one_that_joins_soon_has_its_share(workers: Workers, settings: Settings) -> None:
    """The others give up what is too much at their next beat, and it takes that at its own."""
    with workers.serving("old"):
        workers.wait_for(settings.partitions)
        with workers.serving("new"):
            workers.wait_for(2, 2)
            joined = workers.first("new", BEAT)
            assert workers.beats("old", joined) <= 3
            assert workers.beats("new", workers.first("old", CHANGE, joined)) <= 3


def test_the_share_of_one_that_leaves_is_soon_taken(workers: Workers, settings: Settings) -> None:
    """As above."""
    with workers.serving("old"):
        with workers.serving("new"):
            workers.wait_for(2, 2)
            since = len(workers.journal)
        left = workers.first("new", CHANGE, since)
        workers.wait_for(4)
        assert workers.beats("old", left) <= 3


def test_a_worker_that_cannot_renew_its_leases_stops_before_they_run_out(
    workers: Workers, settings: Settings, redis_client: Redis
) -> None:
    """By its own clock, although its other requests pass: it takes nothing that may be another's by then."""
    with workers.serving("silent") as proxy, FeedbackClient.from_url(settings.redis_url) as client:
        workers.wait_for(4)
        (silent,) = set(workers.owners())
        trap = proxy.hold_request(is_kind(BEAT))
        trap.wait()
        wait_until(lambda: not redis_client.exists(keys.worker_session(silent.decode())), "its session ran out")
        since = len(workers.journal)
        tickets = list(client.submit_many(Put(session_id, "m1", "positive") for session_id in SESSIONS))
        wait_until(lambda: not redis_client.exists(keys.wake(silent.decode())), "it has heard of them")
        for _ in range(200):
            redis_client.ping()  # time enough to claim them, for one that would
        assert ("silent", "worker/claim") not in workers.journal[since:]
        trap.release()
        assert all(ticket.result().ok for ticket in tickets)
        wait_until(lambda: is_idle(redis_client, settings), "everything is finished")
        assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])


def newer_epochs(settings: Settings) -> bool:
    """Whether some partition was committed to by one owner after another."""
    return len({(event.partition, event.epoch) for event in stored_events(settings)}) > settings.partitions


def test_a_living_workers_session_that_expires_costs_nothing_but_an_epoch(
    workers: Workers, settings: Settings, redis_client: Redis
) -> None:
    """The server's clock jumped ahead: others take its partitions, while it works. The fence keeps them apart."""
    tickets: list[Ticket] = []
    with ExitStack() as running, FeedbackClient.from_url(settings.redis_url) as client:
        running.enter_context(workers.serving("one"))
        workers.wait_for(4)
        (one,) = set(workers.owners())
        running.enter_context(workers.serving("two"))
        workers.wait_for(2, 2)
        (two,) = set(workers.owners()) - {one}
        since = len(workers.journal)
        # Until the other one has committed in an epoch of its own, too.
        while sum(entry == ("two", CHANGE) for entry in workers.journal[since:]) < 3 or not newer_epochs(settings):
            tickets += client.submit_many([Put(session_id, "m1", "positive") for session_id in SESSIONS])
            with redis_client.pipeline() as pipeline:
                pipeline.pexpire(keys.worker_session(one.decode()), 0)
                pipeline.rpush(keys.wake(two.decode()), "lease")
                pipeline.execute()
            tickets[-1].result()
        workers.wait_for(2, 2)
        for ticket in tickets:
            ticket.result()
        wait_until(lambda: is_idle(redis_client, settings), "everything is finished")
        assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])
