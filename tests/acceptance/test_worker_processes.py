"""Worker processes that are killed, join and leave while commands arrive."""

import functools
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from redis import Redis

from app.processes import Child
from feedback import FeedbackClient, Put, Ticket, keys
from feedback.settings import Settings
from tests.harness import settings_for, wait_until, write_session
from tests.outcomes import assert_sound, is_idle, workers_of_epochs
from tests.processes import child, children, kill, let_leases_run_out

pytestmark = [pytest.mark.server, pytest.mark.process]

UNDER_WAY = 300
SESSIONS = [f"session-{number}" for number in range(24)]


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=6, event_retention=1_000_000)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1", "m2")
    return settings


def owners(redis: Redis) -> set[object]:
    return set(redis.hvals(keys.owners(1)))


def taken_over(redis: Redis, before: set[object]) -> bool:
    return owners(redis).isdisjoint(before)


@contextmanager
def load(url: str) -> Iterator[list[Ticket]]:
    """Puts on all Sessions, a few hundred under way at any time, until the block ends."""
    tickets: list[Ticket] = []
    stop = threading.Event()

    def submit() -> None:
        ratings = cycle(("positive", "negative", "positive"))
        with FeedbackClient.from_url(url) as client:
            while not stop.is_set():
                batch = [
                    Put(session_id, message_id, next(ratings), None, "stale" if message_id == "m2" else None)  # type: ignore[arg-type]  # a Literal, cycled
                    for session_id in SESSIONS
                    for message_id in ("m1", "m2")
                ]
                tickets.extend(client.submit_many(batch))
                if len(tickets) > UNDER_WAY:
                    tickets[-UNDER_WAY].result(timeout=60)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(submit)
        try:
            yield tickets
        finally:
            stop.set()
            running.result()


def wait_for_work(tickets: list[Ticket], redis: Redis, more: int) -> None:
    """Until so many more commands were answered."""
    target = len(tickets) + more
    wait_until(lambda: len(tickets) > target, "more commands are submitted")
    last = tickets[target].command_id
    wait_until(lambda: redis.exists(keys.results(last)), "commands are answered")


def test_a_worker_killed_at_any_moment_leaves_every_command_done_once(
    redis_client: Redis, settings: Settings, tmp_path: Path
) -> None:
    with children("worker", settings=settings, logs=tmp_path) as running, load(settings.redis_url) as tickets:
        for _ in range(3):
            wait_for_work(tickets, redis_client, 300)
            kill(running[0])
            let_leases_run_out(redis_client, running[0])
            running[0].stop(0)
            running[0] = child("worker", settings, tmp_path)
        wait_for_work(tickets, redis_client, 300)
    with children("worker", settings=settings, logs=tmp_path):
        wait_until(lambda: is_idle(redis_client, settings), "everything is finished")
        assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])
        with FeedbackClient.from_url(settings.redis_url) as client:
            assert all(client.result_of(ticket.command_id, timeout=5) for ticket in tickets[:50])


def test_workers_share_partitions_and_no_session_is_served_by_two_at_once(
    redis_client: Redis, settings: Settings, tmp_path: Path
) -> None:
    with children("worker", settings=settings, logs=tmp_path) as running, load(settings.redis_url) as tickets:
        wait_for_work(tickets, redis_client, 200)
        running += [child("worker", settings, tmp_path), child("worker", settings, tmp_path)]
        wait_until(lambda: len(owners(redis_client)) == 3, "three workers share the partitions")
        wait_for_work(tickets, redis_client, 200)
        assert running[0].stop(settings.shutdown_grace), "a worker drains by itself"
        wait_until(lambda: len(owners(redis_client)) == 2 and redis_client.hlen(keys.owners(1)) == 6, "two take over")
        wait_for_work(tickets, redis_client, 200)
        kill(running[1])
        wait_until(lambda: len(owners(redis_client)) == 1, "the last one takes over")
        wait_for_work(tickets, redis_client, 200)
    finish(redis_client, settings, tmp_path)
    events = assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])
    by_epoch = workers_of_epochs(redis_client, events)
    assert len(set.union(*by_epoch.values())) >= 3, "all three worked"


def finish(redis: Redis, settings: Settings, logs: Path) -> None:
    with children("worker", settings=settings, logs=logs):
        wait_until(lambda: is_idle(redis, settings), "everything is finished")


def freeze_outside_commit(worker: Child, settings: Settings) -> None:
    """SIGSTOP, but not while it holds SQLite's write lock: no other process could commit until it is killed or thawed.

    That is SQLite's nature, not the fence's (docs/operations.md).
    """
    path = settings.sidecar_url.removeprefix("sqlite:///")

    def frozen() -> bool:
        kill(worker, signal.SIGSTOP)
        with closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                kill(worker, signal.SIGCONT)
                return False
            return True

    wait_until(frozen, "the worker is stopped between two commits")


def test_a_frozen_worker_that_wakes_up_commits_nothing(redis_client: Redis, settings: Settings, tmp_path: Path) -> None:
    with children("worker", settings=settings, logs=tmp_path) as running, load(settings.redis_url) as tickets:
        for _ in range(2):
            wait_for_work(tickets, redis_client, 100)
            frozen: Child = running[-1]
            freeze_outside_commit(frozen, settings)
            let_leases_run_out(redis_client, frozen)
            before = owners(redis_client)
            running.append(child("worker", settings, tmp_path))
            wait_until(functools.partial(taken_over, redis_client, before), "another takes all over")
            wait_for_work(tickets, redis_client, 100)
            kill(frozen, signal.SIGCONT)
            wait_until(lambda: len(owners(redis_client)) >= 2, "the thawed one joins again")
            assert frozen.stop(settings.shutdown_grace)
            running.remove(frozen)
    finish(redis_client, settings, tmp_path)
    assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])
