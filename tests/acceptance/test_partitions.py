"""Changing the number of partitions while everything runs: no Session is ever served by two generations at once."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, Ok, Put, Ticket, keys
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.sidecar import open_store
from tests.harness import serving, settings_for, wait_until, write_session
from tests.outcomes import assert_sound
from tests.processes import children, kill

pytestmark = [pytest.mark.server, pytest.mark.process]

SESSIONS = [f"session-{number}" for number in range(20)]


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=0, event_retention=1_000_000)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1")
    return settings


def feedback(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    named = ("--redis-url", settings.redis_url, "--sidecar-url", settings.sidecar_url)
    command = (sys.executable, "-P", "-m", "app.cli", "partitions", *named, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def shown(settings: Settings) -> dict[str, int]:
    answer = feedback(settings, "--json")
    assert answer.returncode == 0, answer.stderr
    report: dict[str, int] = msgspec.json.decode(answer.stdout)
    return report


@contextmanager
def load(url: str) -> Iterator[list[Ticket]]:
    """Puts on all Sessions, a few hundred under way, until the block ends."""
    tickets: list[Ticket] = []
    stop = threading.Event()

    def submit() -> None:
        with FeedbackClient.from_url(url) as client:
            while not stop.is_set():
                tickets.extend(client.submit_many(Put(session_id, "m1", "positive") for session_id in SESSIONS))
                if len(tickets) > 200:
                    tickets[-200].result(timeout=60)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(submit)
        try:
            yield tickets
        finally:
            stop.set()
            running.result()


def wait_for_work(tickets: list[Ticket], redis: Redis) -> None:
    target = len(tickets) + 100
    wait_until(lambda: len(tickets) > target, "more is submitted")
    wait_until(lambda: redis.exists(keys.results(tickets[target].command_id)), "and answered")


def test_grow_and_shrink_under_load(redis_client: Redis, settings: Settings, tmp_path: Path) -> None:
    """Across both changes: each command once, each Session's revisions dense and in commit order over generations."""
    with children("worker", "worker", settings=settings, logs=tmp_path) as running:
        with load(settings.redis_url) as tickets:
            wait_for_work(tickets, redis_client)
            assert feedback(settings, "set", "48").returncode == 0
            wait_until(lambda: shown(settings)["former"] == 0, "the first generation is retired")
            wait_for_work(tickets, redis_client)
            kill(running[0])
            assert feedback(settings, "set", "3").returncode == 0
            wait_until(lambda: shown(settings)["former"] == 0, "the second generation is retired, a dead worker's too")
            wait_for_work(tickets, redis_client)
        with FeedbackClient.from_url(settings.redis_url) as client:
            assert client.result_of(tickets[-1].command_id).revision is not None
        assert shown(settings) == {"generation": 3, "partitions": 3, "former": 0}
        assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets], {1: 32, 2: 48, 3: 3})


def test_a_job_requeued_to_an_old_queue_is_served_where_its_session_is_now(
    redis_client: Redis, settings: Settings
) -> None:
    with serving(settings), FeedbackClient(redis_client) as client:
        done = client.submit(Put("session-1", "m1", "positive"))
        assert isinstance(done.result(), Ok)
        assert feedback(settings, "set", "5").returncode == 0
        wait_until(lambda: shown(settings)["former"] == 0, "the first generation is retired")
        number = next(n for n in range(32) if redis_client.exists(keys.events(PartitionId(1, n))))
        redis_client.delete(keys.results(done.command_id))
        redis_client.rpush(keys.queue(PartitionId(1, number)), done.command_id)
        assert done.result(timeout=20) == client.result_of(done.command_id)
        assert not redis_client.exists(keys.queue(PartitionId(1, number)))


def test_one_change_at_a_time_and_only_within_bounds(redis_client: Redis, settings: Settings) -> None:
    missing = feedback(settings, "set", "4")
    assert missing.returncode == 3, "nothing was set up yet"
    assert "a worker makes one" in missing.stderr
    with serving(settings, projector=False):
        pass
    assert feedback(settings, "set", "0").returncode == 2
    assert feedback(settings, "set", "4").returncode == 0
    assert "still being worked off" in feedback(settings).stdout
    again = feedback(settings, "set", "8")
    assert again.returncode == 2
    assert "still under way" in again.stderr
    assert feedback(settings, "set", "4").returncode == 0, "the same number again changes nothing"
    with serving(settings, projector=False):
        wait_until(lambda: shown(settings)["former"] == 0, "nothing waits, so the old generation is soon retired")


def test_a_store_refuses_owners_of_a_generation_whose_time_is_not_now(redis_client: Redis, settings: Settings) -> None:
    with serving(settings, projector=False):
        pass
    assert feedback(settings, "set", "4").returncode == 0
    old, new = PartitionId(1, 0), PartitionId(2, 0)
    with closing(open_store(settings.sidecar_url)) as store:
        assert set(store.acquire_fences([old, new], "w")) == {old}
        stored = store.topology()
        assert stored is not None
        store.retire(stored)
        assert set(store.acquire_fences([old, new], "w")) == {new}
