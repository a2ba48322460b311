"""Jobs that somebody else put on our queues are never executed: they fail visibly, and the partition goes on."""

import pickle
import resource
import subprocess
import sysconfig
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from redis import Redis
from rq import Queue
from rq.job import JobStatus
from rq.serializers import DefaultSerializer

from feedback import FeedbackClient, keys
from feedback.commands import MAX_COMMAND_BYTES
from feedback.errors import CommandFailed
from feedback.settings import Settings
from feedback.wire import FUNCTION, encode_job
from tests.harness import serving, settings_for, write_session
from tests.integration.rq_jobs import (
    enqueue_raw,
    entries,
    events_of,
    failed_registry,
    fetch,
    has_nothing_waiting,
    partition_of,
    put_command,
    request_of,
    results_of,
    set_up,
    stock_queue,
)

pytestmark = pytest.mark.server

RQ = str(Path(sysconfig.get_path("scripts")) / "rq")
SESSION = "s-foreign"
ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"

fired: list[str] = []
"""What was executed. Nothing ever should be."""


def fire(*arguments: object) -> None:
    fired.append(repr(arguments))


class Canary:
    """Fires when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return fire, ("unpickled",)


def bomb(inflated: int) -> bytes:
    """A zlib stream of zeros, 1000 times as long inflated; its checksum is never reached."""
    block = bytes(2**20)
    deflate = zlib.compressobj(9)
    first = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
    again = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
    return first + again * (inflated // len(block) - 1) + deflate.flush()


def call(function: object, *arguments: object, instance: object = None, **named: object) -> bytes:
    return msgspec.msgpack.encode((function, instance, arguments, named))


def members(**more: object) -> dict[str, object]:
    """A command's members, some of them wrong."""
    right: dict[str, object] = msgspec.to_builtins(put_command(SESSION, "m1"))
    return right | {"commandId": ID} | more


DATA: dict[str, bytes] = {
    "pickled canary": pickle.dumps(Canary()),
    "RQ's own pickle": zlib.compress(DefaultSerializer.dumps((f"{__name__}.fire", None, (Canary(),), {}))),
    "another function": call(f"{__name__}.fire", "called"),
    "os.system": call("os.system", "exit 1"),
    "a function that is no text": call(1),
    "our function on an instance": call(FUNCTION, members(), instance="x"),
    "our function with named arguments": call(FUNCTION, members(), x=1),
    "our function without arguments": call(FUNCTION),
    "our function with two": call(FUNCTION, members(), members()),
    "an unknown member": call(FUNCTION, members(surprise=1)),
    "a wrong type": call(FUNCTION, members(note=5)),
    "a rating that is not a number": call(FUNCTION, members(expiresAt=float("nan"))),
    "a newer schema": call(FUNCTION, members(schema=99)),
    "an id that is no UUID inside": call(FUNCTION, members(commandId="1")),
    "another command's id": call(FUNCTION, members(commandId=str(uuid4()))),
    "bytes for text": call(FUNCTION, members(note=b"\xff")),
    "a lone surrogate": call(FUNCTION, members(note="?")).replace(b"\xa1?", b"\xa3\xed\xa0\x80"),
    "no msgpack": b"\xc1",
    "empty": b"",
    "truncated": call(FUNCTION, members())[:-1],
    "JSON": msgspec.json.encode((FUNCTION, None, (members(),), {})),
    "nested 100,000 deep": b"\x91" * 100_000,
    "a map that claims 4 billion entries": b"\xdf\xff\xff\xff\xff",
    "1.5 MB": bytes(3 * MAX_COMMAND_BYTES // 2),
    "2 MB and more": bytes(2 * MAX_COMMAND_BYTES + 1),
    "zlib, not ours": zlib.compress(b"hello"),
    "zlib, broken": b"\x78\x9c" + bytes(100),
    "zlib, 1 GB": bomb(2**30),
}


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Settings]:
    """A system that nobody serves yet; at the end nothing was executed."""
    fired.clear()
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    write_session(settings, SESSION, "m1", "m2")
    set_up(redis_client, settings)
    yield settings
    assert fired == []


def serve_past(settings: Settings, redis: Redis) -> None:
    """Serve until a command that was enqueued last is answered and nothing waits."""
    command = put_command(SESSION, "m2")
    with FeedbackClient.from_url(settings.redis_url) as client:
        ticket = client.submit(request_of(command))
        with serving(settings, projector=False):
            assert ticket.result().ok
    partition = partition_of(settings, SESSION)
    assert has_nothing_waiting(redis, partition)
    assert [event.command_id for event in events_of(redis, partition)] == [command.command_id]


def requeue_all(settings: Settings, queue: Queue) -> None:
    """An operator's `rq requeue --all`, which stops at the first job that RQ cannot read."""
    words = ("--url", settings.redis_url, "--queue", queue.name, "--serializer", "feedback.wire.Serializer", "--all")
    done = subprocess.run([RQ, "requeue", *words], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", DATA)
def test_foreign_data_is_never_executed(settings: Settings, redis_client: Redis, kind: str) -> None:
    """It fails with a reason that RQ's tools show, and the next command is served."""
    partition = partition_of(settings, SESSION)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    enqueue_raw(redis_client, partition, ID.encode(), {"data": DATA[kind], "status": "queued"})
    serve_past(settings, redis_client)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024, "kB more than before"
    assert failed_registry(redis_client, partition).get_job_ids() == [ID]
    assert redis_client.hget(keys.job(ID), "status") == b"failed"
    assert results_of(redis_client, ID) == [b"2"]


def test_every_failure_can_be_read_and_requeued_with_rq(settings: Settings, redis_client: Redis) -> None:
    """Also those whose id, key or hash RQ itself stumbles over: with one of them listed, it would show none."""
    partition, queue = partition_of(settings, SESSION), stock_queue(redis_client, settings, SESSION)
    origin = {"origin": queue.name, "status": "queued"}
    for job_id in (b"\xff\xfe", b"a:b", b"", "ü".encode(), b"pickled"):
        enqueue_raw(redis_client, partition, job_id, origin | {"data": DATA["RQ's own pickle"]})
    enqueue_raw(redis_client, partition, b"no-data", origin)
    for job_id in (b"a-string", b"a-list"):
        enqueue_raw(redis_client, partition, job_id, None)
    redis_client.set(keys.job("a-string"), pickle.dumps(Canary()))
    redis_client.rpush(keys.job("a-list"), "x")
    redis_client.set(keys.results("no-data"), "in the way")
    serve_past(settings, redis_client)
    registry = failed_registry(redis_client, partition)
    listed = registry.get_job_ids()
    assert len(listed) == 8
    assert {"pickled", "no-data", "a-string", "a-list"} < set(listed)
    reasons = [reason_of(redis_client, job_id) for job_id in listed]
    for original in (rb"b'\xff\xfe'", b"b'a:b'", b"b''"):
        assert any(original.decode() in reason for reason in reasons), "the reason names the original id"
    requeue_all(settings, queue)
    assert registry.get_job_ids() == []
    with FeedbackClient.from_url(settings.redis_url) as client, serving(settings, projector=False):
        assert client.put(SESSION, "m1", "negative").ok
    # What never was an RQ job names no queue to go back to, and RQ drops it.
    assert set(registry.get_job_ids()) == set(listed) - {"a-string", "a-list"}


def reason_of(redis: Redis, job_id: str) -> str:
    """Why RQ's tools say that the job failed."""
    job = fetch(redis, job_id)
    assert job.get_status() is JobStatus.FAILED
    latest = job.latest_result()
    assert latest is not None
    assert latest.exc_string is not None
    assert "InvalidRequest" in latest.exc_string
    return str(latest.exc_string)


def test_only_the_data_field_of_a_hash_is_looked_at(settings: Settings, redis_client: Redis) -> None:
    """A command of ours is served, whatever the rest of its hash says."""
    command = put_command(SESSION, "m1")
    fields: dict[str, bytes | str] = {
        "data": encode_job(command),
        "status": b"\xff",
        "created_at": "yesterday",
        "timeout": "soon",
        "dependency_ids": "{",
        "meta": pickle.dumps(Canary()),
        "result": pickle.dumps(Canary()),
        "exc_info": bomb(2**24),
    }
    partition = partition_of(settings, SESSION)
    enqueue_raw(redis_client, partition, command.command_id.encode(), fields)
    with FeedbackClient.from_url(settings.redis_url) as client, serving(settings, projector=False):
        assert client.result_of(command.command_id).ok
    assert redis_client.hget(keys.job(command.command_id), "status") == b"finished"
    assert has_nothing_waiting(redis_client, partition)


def test_id_whose_job_is_gone_is_passed_over(settings: Settings, redis_client: Redis) -> None:
    """As RQ does: somebody deleted the job."""
    enqueue_raw(redis_client, partition_of(settings, SESSION), ID.encode(), None)
    serve_past(settings, redis_client)
    assert failed_registry(redis_client, partition_of(settings, SESSION)).get_job_ids() == []
    assert not redis_client.exists(keys.job(ID), keys.results(ID))


@pytest.mark.parametrize("job_id", ["1", ID.upper(), ID.replace("-", ""), "\x00", "*", "x" * 5000])
def test_id_that_is_no_command_id_fails(settings: Settings, redis_client: Redis, job_id: str) -> None:
    """Even if the command inside bears the same."""
    data = call(FUNCTION, members(commandId=job_id))
    enqueue_raw(redis_client, partition_of(settings, SESSION), job_id.encode(), {"data": data})
    serve_past(settings, redis_client)
    (listed,) = failed_registry(redis_client, partition_of(settings, SESSION)).get_job_ids()
    assert "$.commandId" in reason_of(redis_client, listed)


def test_id_twice_on_the_queue_takes_effect_once(settings: Settings, redis_client: Redis) -> None:
    """One event, the same answer; a malformed one fails, and nothing of either is left on the queue."""
    command, partition = put_command(SESSION, "m1"), partition_of(settings, SESSION)
    for _ in range(2):
        enqueue_raw(redis_client, partition, command.command_id.encode(), {"data": encode_job(command)})
        enqueue_raw(redis_client, partition, ID.encode(), {"data": DATA["pickled canary"]})
    with FeedbackClient.from_url(settings.redis_url) as client, serving(settings, projector=False):
        assert client.result_of(command.command_id).revision == 1
        assert client.put(SESSION, "m2", "positive").revision == 2
    assert has_nothing_waiting(redis_client, partition)
    events = events_of(redis_client, partition)
    assert [event.revision for event in events] == [1, 2]
    assert events[0].command_id == command.command_id
    answers = {fields[b"return_value"] for fields in entries(redis_client, keys.results(command.command_id))}
    assert len(answers) == 1
    assert failed_registry(redis_client, partition).get_job_ids() == [ID]


@pytest.mark.parametrize("forged", [pickle.dumps(Canary()), b"", bomb(2**24), bytes(5 * MAX_COMMAND_BYTES), b"\x80"])
def test_client_never_unpickles_an_answer(settings: Settings, redis_client: Redis, forged: bytes) -> None:
    """Whoever can write to the server can forge an answer, but not make the host run anything."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        ticket = client.submit(request_of(put_command(SESSION, "m1")))
        redis_client.xadd(keys.results(ticket.command_id), {"type": 1, "return_value": b64encode(forged)})
        with pytest.raises(CommandFailed):
            ticket.result()


@pytest.mark.parametrize("forged", [pickle.dumps(Canary()), b"", b"\x91" * 100_000, bomb(2**24)])
def test_client_never_unpickles_a_failure(settings: Settings, redis_client: Redis, forged: bytes) -> None:
    with FeedbackClient.from_url(settings.redis_url) as client:
        ticket = client.submit(request_of(put_command(SESSION, "m1")))
        redis_client.hset(keys.job(ticket.command_id), mapping={"status": "failed", "failure": forged})
        redis_client.xadd(keys.results(ticket.command_id), {"type": 2, "exc_string": bomb(2**24)})
        with pytest.raises(CommandFailed):
            ticket.result()
