"""Promises that hold across several parts: what is made durable when, how logs are left, when duplicates expire."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from feedback import CommandExpired, FeedbackClient, InvalidRequest, Item, ItemList, Ok, Put, Rejected, keys
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from persistence.sidecar import SqliteStore, open_store
from persistence.sidecar.store import StoreTransaction
from tests.harness import CREATED_AT, serving, settings_for, write_session
from worker.messages import Call
from worker.queue import ClaimQueue

pytestmark = pytest.mark.server

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=1, command_retention=3600)
    write_session(settings, "s", "m1", "m2")
    return settings


class Clock:
    """Wall clock of worker and client, set by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_first_the_log_then_the_sidecar_is_made_durable_then_the_answer_goes_out(
    redis_client: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    log = next(Path(settings.sessions).rglob("session.jsonl.zstd"))
    fsync, transaction, finish = os.fsync, SqliteStore.transaction, ClaimQueue.finish_call

    def noting_fsync(descriptor: int) -> None:
        fsync(descriptor)
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == log.stat().st_ino:
                steps.append("log")

    @contextlib.contextmanager
    def noting_transaction(store: SqliteStore, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        with transaction(store, epochs) as one:
            yield one
        steps.append("sidecar")

    def noting_finish(queue: ClaimQueue, *args: Any, **kwargs: Any) -> Call:
        steps.append("answer")
        return finish(queue, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(SqliteStore, "transaction", noting_transaction)
    monkeypatch.setattr(ClaimQueue, "finish_call", noting_finish)
    with serving(settings, projector=False), FeedbackClient(redis_client) as client:
        assert isinstance(client.put("s", "m1", "positive"), Ok)
    assert steps == ["log", "sidecar", "answer"]


def test_feedback_never_enters_the_log(redis_client: Redis, settings: Settings) -> None:
    """Nor anything else below the Session root: to the byte and to the modification time."""
    with serving(settings), FeedbackClient(redis_client) as client:

        def root() -> dict[Path, tuple[bytes, int]]:
            files = [path for path in Path(settings.sessions).rglob("*") if path.is_file()]
            return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

        before = root()
        stored = client.put("s", "m1", "positive", note="a note")
        assert isinstance(stored, Ok)
        assert isinstance(stored.value, Item)
        client.delete("s", "m1", if_version=stored.value.version)
        client.list("s")
        assert root() == before


def test_a_fork_has_its_own_id_and_starts_empty(redis_client: Redis, settings: Settings) -> None:
    """Its inherited messages can be rated, and what the parent has stays the parent's."""
    with LogWriter(
        Path(settings.sessions), "fork", created_at=CREATED_AT, cwd="/w", parent_session="s", seed_length=1
    ) as log:
        log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
    with serving(settings), FeedbackClient(redis_client) as client:
        assert isinstance(client.put("s", "m1", "positive"), Ok)
        assert client.list("fork") == Ok(value=ItemList(items=()))
        assert isinstance(client.put("fork", "m1", "negative"), Ok)
        listed = client.list("s")
        assert isinstance(listed, Ok)
        assert isinstance(listed.value, ItemList)
        assert [item.rating for item in listed.value.items] == ["positive"]


def test_a_duplicate_that_comes_after_its_record_is_gone_has_expired(redis_client: Redis, settings: Settings) -> None:
    """There is no window: it meets its record, or its deadline has passed."""
    clock = Clock()
    with serving(settings, projector=False, clock_ms=clock), FeedbackClient(redis_client, clock_ms=clock) as client:
        ticket = client.submit(Put("s", "m1", "positive"))
        first = ticket.result()
        job: Any = redis_client.hgetall(keys.job(ticket.command_id))

        def deliver_again() -> None:
            redis_client.delete(keys.job(ticket.command_id), keys.results(ticket.command_id))
            redis_client.hset(keys.job(ticket.command_id), mapping=job)
            redis_client.rpush(keys.queue(PartitionId(1, 0)), ticket.command_id)

        deliver_again()
        assert ticket.result() == first
        store = open_store(settings.sidecar_url)
        try:
            # As the worker does: records go one whole retention after their deadline.
            clock.now_ms += 2 * 1000 * settings.command_retention + 1
            assert store.prune(expired_before=clock.now_ms - 1000 * settings.command_retention, limit=10) == 1
        finally:
            store.close()
        deliver_again()
        with pytest.raises(CommandExpired):
            ticket.result()


def test_the_deployments_own_retention_bounds_deadlines(redis_client: Redis, settings: Settings) -> None:
    clock = Clock()
    with serving(settings, projector=False, clock_ms=clock), FeedbackClient(redis_client, clock_ms=clock) as client:
        in_time = clock.now_ms + 1000 * settings.command_retention
        assert isinstance(client.put("s", "m1", "positive", expires_at=in_time), Ok)
        with pytest.raises(InvalidRequest, match=r"\$.expiresAt"):
            client.put("s", "m2", "positive", expires_at=in_time + 1)
        # A host that does not look is refused by the worker, with room for clocks that differ.
        with (
            FeedbackClient(redis_client, clock_ms=lambda: clock.now_ms + DAY_MS) as careless,
            pytest.raises(InvalidRequest, match=r"\$.expiresAt"),
        ):
            careless.put("s", "m2", "positive")
        assert isinstance(client.put("s", "m1", "negative"), Rejected), "and nothing was applied of it"
