"""A server that says nothing, to one worker or to everybody, and one whose clock jumps (FAULTS: R4, C2)."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, Put, Ticket, keys
from feedback.connection import connect
from feedback.settings import Settings
from tests.chaos.server import ChaosServer
from tests.harness import serving, settings_for, wait_until, write_session
from tests.outcomes import assert_sound, is_idle
from tests.preloaded import SteppedClock, build, compiler
from tests.processes import children, kill
from tests.proxy import Proxy
from worker.process import run_worker

pytestmark = pytest.mark.server

SESSIONS = tuple(f"session-{number}" for number in range(8))
HOUR_MS = 3_600_000


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    return new_settings(valkey_url, tmp_path)


def new_settings(url: str, home: Path) -> Settings:
    settings = settings_for(url, home, lease_ttl=1.0, event_retention=1_000_000, result_ttl=3 * 3600)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1")
    return settings


@contextmanager
def load(settings: Settings) -> Iterator[list[Ticket]]:
    """Puts on all Sessions, one round after the other, until the block ends; then all are answered."""
    tickets: list[Ticket] = []
    stop = threading.Event()

    def submit() -> None:
        with FeedbackClient.from_url(settings.redis_url) as client:
            while not stop.is_set():
                tickets.extend(client.submit_many((Put(one, "m1", "positive") for one in SESSIONS), timeout=30))
                tickets[-1].result(30)
            for ticket in tickets:
                ticket.result(30)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(submit)
        try:
            yield tickets
        finally:
            stop.set()
            running.result()


def wait_for_work(tickets: list[Ticket]) -> None:
    sent = len(tickets)
    wait_until(lambda: len(tickets) > sent + 10 * len(SESSIONS), "there is work")


def finish(settings: Settings, redis: Redis, tickets: list[Ticket]) -> None:
    """All that was sent was done once, and nothing is left."""
    wait_until(lambda: is_idle(redis, settings), "all is finished")
    assert_sound(redis, settings, [ticket.command_id for ticket in tickets])


def owners(redis: Redis) -> list[bytes]:
    found: dict[bytes, bytes] = redis.execute_command("HGETALL", keys.owners(1))
    return list(found.values())


@pytest.mark.parametrize("leases", [0, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_worker_in_a_black_hole_commits_nothing_and_comes_back_by_itself(
    settings: Settings, redis_client: Redis, leases: int
) -> None:
    """Until another one has its share, or for ten leases: it gets neither an answer nor an error."""
    stop = threading.Event()
    with Proxy(settings.redis_url) as proxy, ThreadPoolExecutor(1) as threads, serving(settings, projector=False):
        cut_off = msgspec.structs.replace(settings, redis_url=proxy.url)
        running = threads.submit(run_worker, cut_off, stop)
        try:
            wait_until(lambda: len(set(owners(redis_client))) == 2, "both have a share")
            with load(settings) as tickets:
                wait_for_work(tickets)
                proxy.freeze()
                wait_until(lambda: len(set(owners(redis_client))) == 1, "the other one has all")
                wait_for_work(tickets)
                threading.Event().wait(leases)
                proxy.thaw()
                wait_until(lambda: len(set(owners(redis_client))) == 2, "it has its share again")
            finish(settings, redis_client, tickets)
        finally:
            proxy.thaw()
            stop.set()
            running.result()


def test_a_server_that_pauses_everybody_past_their_leases(settings: Settings, redis_client: Redis) -> None:
    """CLIENT PAUSE: all wait, nobody is answered with an error, and all go on."""
    with serving(settings, workers=2, projector=False), load(settings) as tickets:
        wait_for_work(tickets)
        redis_client.execute_command("CLIENT", "PAUSE", 2000, "ALL")
        wait_for_work(tickets)
    finish(settings, redis_client, tickets)


@pytest.mark.process
def test_a_server_whose_clock_jumps(tmp_path: Path) -> None:
    """An hour ahead, all leases run out at once, and nothing is lost or done twice; an hour back, a dead worker's lease
    would live for that long, and is taken over all the same, by its silence."""
    if compiler() is None:
        pytest.skip("no C compiler: the server's clock cannot be set")
    clock = SteppedClock(build("stepped_clock"), tmp_path, "server")
    server = ChaosServer(tmp_path / "valkey", clock.variables)
    server.begin()
    settings = new_settings(server.url, tmp_path)
    with closing(clock), connect(server.url) as redis:
        try:
            with children("worker", "worker", settings=settings, logs=tmp_path) as workers:
                wait_until(lambda: len(set(owners(redis))) == 2, "both have a share")
                with load(settings) as tickets:
                    for ahead_ms in (HOUR_MS, 0):
                        wait_for_work(tickets)
                        clock.step_to(ahead_ms)
                    kill(workers[0])
                    wait_until(lambda: len(set(owners(redis))) == 1, "the dead one's share is taken over")
                finish(settings, redis, tickets)
        finally:
            server.stop()
