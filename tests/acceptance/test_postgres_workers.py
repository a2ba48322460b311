"""Worker processes that share a PostgreSQL store, when they are killed or frozen and when the server crashes."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient
from feedback.crashpoints import VARIABLE
from feedback.settings import Settings
from tests.acceptance.test_worker_processes import SESSIONS, finish, load, owners, wait_for_work
from tests.harness import settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.outcomes import assert_sound
from tests.postgres import Postgres
from tests.processes import child, children, is_stopped, kill

pytestmark = [pytest.mark.server, pytest.mark.process]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with closing(Postgres()) as server:
        server.start()
        server.create("feedback")
        yield server


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, postgres: Postgres, tmp_path: Path) -> Settings:
    url = postgres.url("feedback", options="-c transaction_timeout=1500")
    settings = settings_for(valkey_url, tmp_path, partitions=6, event_retention=1_000_000, sidecar_url=url)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1", "m2")
    return settings


def test_killed_workers_a_crashed_server_and_a_worker_frozen_inside_its_commit_cost_nothing(
    redis_client: Redis, settings: Settings, postgres: Postgres, tmp_path: Path
) -> None:
    """A worker that stands still with its partitions' rows locked is what SQLite cannot get rid of: the server can."""
    with (
        children("worker", "worker", settings=settings, logs=tmp_path) as running,
        load(settings.redis_url) as tickets,
    ):
        wait_until(lambda: len(owners(redis_client)) == 2, "two workers share the partitions")
        wait_for_work(tickets, redis_client, 100)
        before = owners(redis_client)
        kill(running[0])
        running[0].stop(0)
        running[0] = child("worker", settings, tmp_path)
        wait_until(
            lambda: len(owners(redis_client) - before) == 1 and len(owners(redis_client)) == 2, "two share again"
        )
        wait_for_work(tickets, redis_client, 100)
        postgres.crash()
        postgres.start()
        wait_for_work(tickets, redis_client, 100)
        others = owners(redis_client)
        frozen = child("worker", settings, tmp_path, {VARIABLE: "inside-commit:stop:3"})
        running.append(frozen)
        wait_until(lambda: is_stopped(frozen), "a third worker stops inside a commit")
        wait_until(lambda: owners(redis_client) == others, "its partitions are taken over")
        wait_for_work(tickets, redis_client, 200)
        kill(frozen, signal.SIGCONT)
        wait_until(lambda: len(owners(redis_client)) == 3, "it notices, and joins again")
        wait_for_work(tickets, redis_client, 100)
    finish(redis_client, settings, tmp_path)
    assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])
    assert "the server ended a transaction that took too long" in frozen.log.read_text()
    with children("projector", settings=settings, logs=tmp_path), FeedbackClient.from_url(settings.redis_url) as client:
        assert [item.message_id for item in items_of(client.list(SESSIONS[0]))] == ["m1"]
