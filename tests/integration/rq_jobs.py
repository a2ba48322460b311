"""What the tests of jobs and traps share: commands as RQ jobs, jobs of strangers, and what became of them."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import msgspec
import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry

from app.processes import Child
from app.system import child_environ
from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.commands import SCHEMA, Command, PutCommand
from feedback.events import Event, decode_event
from feedback.partitions import PartitionId
from feedback.requests import Put
from feedback.settings import Settings
from feedback.wire import FUNCTION, Serializer
from persistence.session_log.catalog import Catalog
from persistence.sidecar import open_store
from tests.harness import wait_until
from tests.processes import program
from worker import jobs
from worker import topology as topologies

HOUR_MS = 3_600_000


def put_command(session_id: str, message_id: str, **more: object) -> PutCommand:
    """A complete command with an id of its own, due in an hour."""
    usual = {
        "type": "put",
        "schema": SCHEMA,
        "commandId": str(uuid4()),
        "sessionId": session_id,
        "messageId": message_id,
        "ifVersion": None,
        "expiresAt": wall_clock_ms() + HOUR_MS,
        "rating": "positive",
    }
    return msgspec.convert(usual | more, PutCommand)


def request_of(command: PutCommand) -> Put:
    """The same as a client would be asked for it."""
    return Put(command.session_id, command.message_id, command.rating, command.note, command_id=command.command_id)


def partition_of(settings: Settings, session_id: str) -> PartitionId:
    return PartitionId(1, crc32(session_id.encode()) % settings.partitions)


def set_up(redis: Redis, settings: Settings) -> None:
    """Store and Redis as a first worker leaves them: clients may enqueue while nobody serves."""
    with contextlib.closing(open_store(settings.sidecar_url)) as store:
        topologies.establish(redis, store, settings)


def stock_queue(redis: Redis, settings: Settings, session_id: str, *, is_async: bool = True) -> Queue:
    """The Session's queue, as RQ's own API has it."""
    name = keys.queue_name(partition_of(settings, session_id))
    return Queue(name, connection=redis, serializer=Serializer, is_async=is_async)


def enqueue_by_rq(queue: Queue, command: Command) -> Job:
    """By RQ's own API: rings no bell of ours."""
    return queue.enqueue_call(FUNCTION, args=(msgspec.to_builtins(command),), job_id=command.command_id)


def enqueue_raw(redis: Redis, partition: PartitionId, job_id: bytes, fields: Mapping[str, bytes | str] | None) -> None:
    """A job as anybody could write it; None for no job at all, only its id on the queue."""
    with redis.pipeline() as pipeline:
        if fields:
            pipeline.hset(
                keys.RQ_JOB_PREFIX.encode() + job_id, items=[part for pair in fields.items() for part in pair]
            )
        pipeline.sadd(keys.RQ_QUEUES, keys.queue(partition))
        pipeline.rpush(keys.queue(partition), job_id)
        pipeline.execute()


def fetch(redis: Redis, command_id: str) -> Job:
    return Job.fetch(command_id, connection=redis, serializer=Serializer)


def failed_registry(redis: Redis, partition: PartitionId) -> FailedJobRegistry:
    return FailedJobRegistry(keys.queue_name(partition), connection=redis, serializer=Serializer)


def events_of(redis: Redis, *partitions: PartitionId) -> list[Event]:
    """Everything that was published, partition by partition, in order."""
    streams = [entries(redis, keys.events(partition)) for partition in partitions]
    return [decode_event(fields[b"event"]) for stream in streams for fields in stream]


def results_of(redis: Redis, command_id: str) -> list[bytes]:
    """The kinds of all results of one job, oldest first: b"1" finished, b"2" failed."""
    return [fields[b"type"] for fields in entries(redis, keys.results(command_id))]


def entries(redis: Redis, stream: str) -> list[dict[bytes, bytes]]:
    """The fields of each entry, oldest first."""
    reply: Any = redis.xrange(stream)
    return [fields for _, fields in reply]


def wait_for_beats(redis: Redis, owner: object) -> None:
    """Until the owner of a partition has sent so many heartbeats that its lease would have run out without them."""
    assert isinstance(owner, bytes)
    seen: set[object] = set()

    def lives_on() -> bool:
        seen.add(redis.get(keys.worker_session(owner.decode())))
        return len(seen - {None}) > 6

    wait_until(lives_on, "it goes on to live")


def has_nothing_waiting(redis: Redis, partition: PartitionId) -> bool:
    return not redis.exists(keys.queue(partition), keys.claimed(partition))


@contextlib.contextmanager
def worker_process(settings: Settings) -> Iterator[Child]:
    """A worker as a process of its own; whatever became of it, it is gone at the end."""
    log = Path(settings.sessions).with_name("worker.log")
    child = program("worker", "app.cli", "worker", log=log, environ=child_environ(settings))
    child.start()
    try:
        yield child
    finally:
        if child.pid is not None:
            send(child, signal.SIGCONT)
        child.stop(10)


def send(child: Child, number: signal.Signals) -> None:
    """Send it a signal, if it still runs."""
    if child.poll() is None and child.pid is not None:
        os.kill(child.pid, number)


@contextlib.contextmanager
def damaged_log(settings: Settings, session_id: str) -> Iterator[None]:
    """The Session's log is corrupt inside the block, and mended after it."""
    found = Catalog(Path(settings.sessions)).find(session_id)
    assert found is not None
    log = Path(found.path)
    whole = log.read_bytes()
    log.write_bytes(whole[:40] + bytes(8) + whole[48:])
    try:
        yield
    finally:
        log.write_bytes(whole)


@contextlib.contextmanager
def job_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The job function finds these settings in the environment; what it opened is closed at the end."""
    for name, value in child_environ(settings).items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    try:
        yield
    finally:
        jobs._opened.close()
