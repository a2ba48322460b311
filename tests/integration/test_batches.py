"""What a batch costs, and what an idle worker's first command waits for."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis
from rq.job import Job

from feedback import CommandFailed, FeedbackClient, Ok, Put
from feedback.commands import Command
from feedback.connection import connect
from feedback.partitions import PartitionId
from feedback.scripting import Script
from feedback.settings import Settings
from feedback.wire import Serializer
from persistence.sidecar.store import StoreTransaction
from tests.harness import serving, settings_for, write_session
from worker.core.rules import Verdict, decide
from worker.engine import Engine
from worker.loop import PartitionLoop
from worker.runtime import Runtime, open_runtime

pytestmark = pytest.mark.server


class CountingStore:
    """A store that counts its transactions."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.transactions = 0

    def transaction(self, epochs: Mapping[PartitionId, int]) -> AbstractContextManager[StoreTransaction]:
        self.transactions += 1
        transaction: AbstractContextManager[StoreTransaction] = self._store.transaction(epochs)
        return transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def counted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CountingStore, list[str]]]:
    """A worker in a thread, whose transactions and calls of scripts are counted."""
    calls: list[str] = []
    by_digest = Script.by_digest

    def counting(script: Script, *args: Any) -> Any:
        calls.append(script.name)
        return by_digest(script, *args)

    monkeypatch.setattr(Script, "by_digest", counting)
    stop = threading.Event()
    with connect(settings.redis_url) as redis, open_runtime(settings, redis) as runtime:
        store = CountingStore(runtime.store)
        counted_runtime = msgspec.structs.replace(runtime, store=store, engine=_engine(runtime, store))
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(PartitionLoop(counted_runtime, "counted").run, stop)
            try:
                yield store, calls
            finally:
                stop.set()
            running.result()


def _engine(runtime: Runtime, store: Any) -> Engine:
    engine = runtime.engine
    engine._store = store
    return engine


def test_a_batch_over_many_sessions_and_partitions_is_one_commit_and_one_acknowledgement(
    valkey_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(valkey_url, tmp_path, partitions=8)
    sessions = [f"s{number}" for number in range(60)]
    for session_id in sessions:
        write_session(settings, session_id, "m1")
    with serving(settings, projector=False):
        pass  # sets the topology up, and leaves
    with FeedbackClient(redis_client) as client:
        tickets = client.submit_many(Put(session_id, "m1", "positive") for session_id in sessions)
        with counted(settings, monkeypatch) as (store, calls):
            assert all(isinstance(ticket.result(), Ok) for ticket in tickets)
    assert store.transactions == 1
    assert calls.count("finish") == 1
    assert calls.count("claim") <= 4, "one that takes all, and those that wait for more"
    assert "owners_of" not in calls, "a claim says who holds its Session open"


def test_an_idle_worker_is_woken_by_the_command_and_not_by_its_heartbeat(
    valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """Heartbeats are minutes apart here: without the bell each put would wait until a blocking read ends."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=900.0)
    write_session(settings, "s", "m1")
    with serving(settings, projector=False), FeedbackClient(redis_client) as client:
        first = client.put("s", "m1", "positive")
        assert isinstance(first, Ok)
        for number in range(20):
            # Each is answered before the next is sent: the worker goes idle in between.
            assert client.put("s", "m1", "negative", if_version=str(number), timeout=2).ok is False


def test_a_command_that_breaks_the_code_is_isolated_with_its_traceback(
    valkey_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its batch, its own Session's too, are done in order, and an operator sees where it broke."""
    settings = settings_for(valkey_url, tmp_path, partitions=1)
    write_session(settings, "s", "m1", "m2")

    def breaking(command: Command, *args: Any, **kwargs: Any) -> Verdict:
        if command.message_id == "poison":
            raise ZeroDivisionError("a bug")
        return decide(command, *args, **kwargs)

    monkeypatch.setattr("worker.core.batching.decide", breaking)
    with serving(settings, projector=False), FeedbackClient(redis_client) as client:
        first, poisoned, second = client.submit_many(
            [Put("s", "m1", "positive"), Put("s", "poison", "positive"), Put("s", "m2", "negative")]
        )
        assert isinstance(first.result(), Ok)
        assert second.result().revision == 2
        with pytest.raises(CommandFailed, match="ZeroDivisionError: a bug"):
            poisoned.result()
        job = Job.fetch(poisoned.command_id, connection=redis_client, serializer=Serializer)
        assert "in breaking" in str(job.latest_result().exc_string)
        assert job.get_status() == "failed"
