"""The wire: frozen bytes that must be read for ever, and job data that nobody should trust."""

import json
import os
import pickle
import tracemalloc
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedback import evidence, queries, wire
from feedback.commands import MAX_COMMAND_BYTES, DeleteCommand, PutCommand
from feedback.errors import InvalidRequest
from feedback.events import (
    FeedbackDeleted,
    FeedbackPut,
    FeedbackRejected,
    FeedbackUnchanged,
    decode_event,
    encode_event,
)
from feedback.failures import Failure, decode_failure, encode_failure
from feedback.model import Item, SessionIdentity
from feedback.results import Absent, Ok, Rejected, TargetNotFound, VersionConflict
from feedback.wire import FUNCTION, decode_job, decode_result, encode_job

GOLDEN = Path(__file__).parents[1] / "golden" / "wire.json"
"""Name -> hex, as released with schema 1. Never change one: add another for another schema."""

ID = "0b7d3c1e-5a52-4c1a-9a37-6f3b6c0f1d2e"
BARE_ID = "11111111-2222-4333-8444-555555555555"
ITEM = Item(
    message_id="m-🚀",
    rating="negative",
    note="not\u00e9",
    version="v-1",
    created_at=1_790_000_000_000,
    updated_at=2**40,
)
PUT = PutCommand(
    schema=1,
    command_id=ID,
    session_id="s-é",
    message_id="m-🚀",
    if_version="v-0",
    actor="someone",
    expires_at=1_790_000_000_000,
    rating="negative",
    note="not\u00e9",
)
BARE_PUT = PutCommand(
    schema=1, command_id=BARE_ID, session_id="s", message_id="m", if_version=None, expires_at=1, rating="positive"
)
DELETE = DeleteCommand(schema=1, command_id=BARE_ID, session_id="s", message_id="m", if_version="v", expires_at=2)
EVENT: dict[str, Any] = {
    "event_id": "1-2-3",
    "command_id": ID,
    "session_id": "s-é",
    "session": SessionIdentity(created_at=5, cwd="/w"),
    "revision": 4,
    "message_id": "m-🚀",
    "actor": "someone",
    "occurred_at": 6,
    "partition": 2,
    "epoch": 9,
}
NO_SESSION = EVENT | {"session": None, "actor": None, "revision": 0}
REJECTION = TargetNotFound(session_id="s-é", message_id="m-🚀")
FAILURE = Failure("LogUnreadable", "cannot", {"session_id": "s", "path": "/p", "reason": "EIO"})

Example = tuple[Callable[[Any], bytes], Callable[[bytes], object], object]
EXAMPLES: dict[str, Example] = {
    "put": (encode_job, decode_job, PUT),
    "put, nothing optional": (encode_job, decode_job, BARE_PUT),
    "put, on a host": (encode_job, decode_job, msgspec.structs.replace(BARE_PUT, host="box-1")),
    "delete": (encode_job, decode_job, DELETE),
    "feedback.put": (encode_event, decode_event, FeedbackPut(**EVENT, item=ITEM)),
    "feedback.deleted": (encode_event, decode_event, FeedbackDeleted(**EVENT)),
    "feedback.unchanged": (encode_event, decode_event, FeedbackUnchanged(**EVENT, item=ITEM)),
    "feedback.unchanged, no item": (encode_event, decode_event, FeedbackUnchanged(**EVENT)),
    "feedback.rejected": (encode_event, decode_event, FeedbackRejected(**NO_SESSION, error=REJECTION)),
    "result, item": (wire.encode_result, decode_result, Ok(value=ITEM)),
    "result, absent": (wire.encode_result, decode_result, Ok(value=Absent())),
    "result, conflict": (wire.encode_result, decode_result, Rejected(error=VersionConflict(current=None))),
    "failure": (encode_failure, decode_failure, FAILURE),
    "list query": (
        queries.encode_query,
        queries.decode_query,
        queries.ListQuery(query_id="q", deadline=7, session_id="s-é", at_least=3),
    ),
    "list query, on a host": (
        queries.encode_query,
        queries.decode_query,
        queries.ListQuery(query_id="q", deadline=7, session_id="s", host="box-1"),
    ),
    "evidence request": (
        evidence.encode_request,
        evidence.decode_request,
        evidence.EvidenceRequest(
            request_id="r",
            reply_to="w",
            host="box-1",
            sessions=(
                evidence.LogQuestion(session_id="s-é", message_ids=("m-🚀", "n"), durable=True),
                evidence.LogQuestion(session_id="t"),
            ),
            deadline=7,
        ),
    ),
    "evidence reply": (
        evidence.encode_reply,
        evidence.decode_reply,
        evidence.EvidenceReply(
            request_id="r",
            host="box-1",
            agent_id="a",
            root="/logs",
            sessions=(
                evidence.Found(
                    "s-é",
                    evidence.LogFound(
                        identity=SessionIdentity(created_at=5, cwd="/w"), eligible=(True, False), revision="1.2"
                    ),
                ),
                evidence.Found("t", evidence.LogAbsent()),
                evidence.Found("u", evidence.LogFailed(FAILURE)),
            ),
        ),
    ),
    "outcome query": (
        queries.encode_query,
        queries.decode_query,
        queries.OutcomeQuery(query_id="q", deadline=7, command_id=ID),
    ),
    "answered": (
        queries.encode_answer,
        queries.decode_answer,
        queries.Answered(result={"ok": True, "value": {"items": []}}, revision=3),
    ),
    "unknown": (queries.encode_answer, queries.decode_answer, queries.Unknown()),
    "failed": (queries.encode_answer, queries.decode_answer, queries.Failed(FAILURE)),
}


def golden() -> dict[str, bytes]:
    lines: dict[str, list[str]] = json.loads(GOLDEN.read_text(encoding="ascii"))
    return {name: bytes.fromhex("".join(parts)) for name, parts in lines.items()}


def test_every_message_has_frozen_bytes() -> None:
    """None is forgotten on either side."""
    assert golden().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_frozen_bytes_are_read_for_ever(name: str) -> None:
    """What an older program left on a queue, in a stream or in the store still means the same."""
    _, decode, value = EXAMPLES[name]
    assert decode(golden()[name]) == value


@pytest.mark.parametrize("name", EXAMPLES)
def test_bytes_are_written_as_they_were_frozen(name: str) -> None:
    """An older program must read what this one writes, while both run."""
    encode, _, value = EXAMPLES[name]
    assert encode(value) == golden()[name]


def members(**changes: Any) -> dict[str, Any]:
    return msgspec.to_builtins(PUT) | changes  # type: ignore[no-any-return] # msgspec says Any; a struct's is a dict


def job(command: object = PUT, *, function: object = FUNCTION, instance: object = None, kwargs: object = None) -> bytes:
    return msgspec.msgpack.encode((function, instance, (command,), {} if kwargs is None else kwargs))


def test_job_data_is_rqs_own_shape() -> None:
    """So that `rq`'s tools show it and a stock worker runs it; zlib, which RQ adds on requeueing, is undone."""
    assert decode_job(job()) == PUT
    for level in (0, 1, 6, 9):
        assert decode_job(zlib.compress(encode_job(PUT), level)) == PUT
    assert wire.Serializer.loads(encode_job(DELETE)) == [FUNCTION, None, [msgspec.to_builtins(DELETE)], {}]
    assert decode_job(wire.Serializer.dumps(wire.Serializer.loads(encode_job(PUT)))) == PUT


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "truncated": encode_job(PUT)[:-1],
    "trailing": encode_job(PUT) + b"\xc0",
    "only zlib's header": b"\x78\x9c",
    "zlib, garbage": b"\x78\x9c" + b"garbage",
    "zlib, truncated data": zlib.compress(encode_job(PUT))[:40],
    "zlib, no checksum": zlib.compress(encode_job(PUT))[:-4],
    "zlib, wrong checksum": zlib.compress(encode_job(PUT))[:-1] + b"\0",
    "zlib, trailing": zlib.compress(encode_job(PUT)) + b"\0",
    "zlib in zlib": zlib.compress(zlib.compress(encode_job(PUT))),
    "json": json.dumps([FUNCTION, None, [members()], {}]).encode(),
    "os.system": job("true", function="os.system"),
    "wrong function": job(function="worker.jobs.apply_commands"),
    "no function": job(function=None),
    "instance": job(instance="x"),
    "kwargs": job(kwargs={"x": 1}),
    "kwargs, not a map": job(kwargs=[1]),
    "no args": msgspec.msgpack.encode((FUNCTION, None, (), {})),
    "extra args": msgspec.msgpack.encode((FUNCTION, None, (PUT, PUT), {})),
    "extra element": msgspec.msgpack.encode((FUNCTION, None, (PUT,), {}, 1)),
    "a map": msgspec.msgpack.encode({"func": FUNCTION}),
    "schema 0": job(members(schema=0)),
    "schema 2": job(members(schema=2)),
    "schema text": job(members(schema="1")),
    "unknown type": job(members(type="list")),
    "unknown member": job(members(extra=1)),
    "long unknown member": job(members(**{"x" * 100_000: 1})),
    "no rating": job({name: value for name, value in members().items() if name != "rating"}),
    "no ifVersion": job({name: value for name, value in members().items() if name != "ifVersion"}),
    "rating of a delete": job(members(type="delete")),
    "id upper case": job(members(commandId=ID.upper())),
    "id of another form": job(members(commandId="x:y")),
    "long actor": job(members(actor="a" * 257)),
    "deadline text": job(members(expiresAt="1")),
    "deadline past 64 bits of a database": job(members(expiresAt=2**64 - 1)),
    "deadline negative": job(members(expiresAt=-1)),
    "deadline a float": job(members(expiresAt=1.5)),
    "deadline NaN": job(members(expiresAt=float("nan"))),
    "text that is no UTF-8": job(members(note="NOTE")).replace(b"NOTE", b"\xed\xa0\x80N"),
    "nested 100,000 deep": b"\x91" * 100_000,
    "nested in the command": msgspec.msgpack.encode((FUNCTION, None))[:-1].replace(b"\x92", b"\x94")
    + b"\xc0\x91"
    + b"\x81\xa4note" * 100_000,
    "array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "text of 4 billion": b"\x94\xdb\xff\xff\xff\xff",
    "huge": job(members(note="x" * MAX_COMMAND_BYTES)),
    "huge and compressed": zlib.compress(job(members(note="x" * MAX_COMMAND_BYTES))),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_job_data_is_an_invalid_request(name: str) -> None:
    """One typed error, short enough for any log, that can itself be written."""
    with pytest.raises(InvalidRequest) as caught:
        decode_job(MALFORMED[name])
    assert len(str(caught.value).encode()) < 500


def test_somebody_elses_pickle_is_never_run(tmp_path: Path) -> None:
    """Plain or compressed, as RQ's default serializer writes it: the canary lives."""
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(canary),)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps((FUNCTION, None, (Bomb(),), {}), protocol)
        for form in (data, zlib.compress(data), encode_job(PUT) + data):
            with pytest.raises(InvalidRequest):
                decode_job(form)
            with pytest.raises(ValueError):
                decode_result(b64encode(form))
    assert not canary.exists()


def test_a_zlib_bomb_costs_no_more_than_a_command() -> None:
    """128 MiB in 128 KiB: what comes out is cut at the bound."""
    deflate = zlib.compressobj(1)
    block = bytes(2**20)
    bomb = b"".join([*(deflate.compress(block) for _ in range(128)), deflate.flush()])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="larger"):
            decode_job(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_COMMAND_BYTES


def test_lengths_that_lie_cost_nothing() -> None:
    """Memory follows what is there, not what a header claims: also for nested claims, and for answers."""
    claims = b"".join(b"\xdd" + (400_000 - 5 * depth).to_bytes(4, "big") for depth in range(900))
    data = claims + b"\x01" * (400_000 - len(claims))
    tracemalloc.start()
    try:
        for decode in (decode_job, lambda raw: decode_result(b64encode(raw)), queries.decode_answer, decode_event):
            with pytest.raises((InvalidRequest, ValueError)):
                decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_a_command_past_the_bound_is_not_encoded() -> None:
    """Its owner would refuse it."""
    with pytest.raises(InvalidRequest, match="at most"):
        encode_job(msgspec.structs.replace(PUT, session_id="s" * MAX_COMMAND_BYTES))


@given(st.binary(max_size=200))
@example(b"\x78\x9c")
def test_random_bytes_are_an_invalid_request(data: bytes) -> None:
    """Plain and compressed."""
    for form in (data, zlib.compress(data)):
        with pytest.raises(InvalidRequest):
            decode_job(form)


@given(position=st.integers(0, len(encode_job(PUT)) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_another_command_or_none(position: int, value: int) -> None:
    """Never another exception; and what is still read, is written back alike."""
    data = bytearray(encode_job(PUT))
    data[position] = value
    try:
        command = decode_job(bytes(data))
    except InvalidRequest:
        return
    assert decode_job(encode_job(command)) == command


@given(st.binary(max_size=200))
@example(b"\x91" * 200_000)
@example(b"\x81\x80\x01")
@example(b"\xd6\xff\x00\x00\x00\x00")
def test_a_result_that_is_none_is_a_value_error(data: bytes) -> None:
    """Raw, and under base64: hosts read results without trusting them."""
    for form in (data, b64encode(data)):
        with pytest.raises(ValueError):
            decode_result(form)


@pytest.mark.parametrize("noise", [b"\n", b" ", b"!", b"=", b"\xff"])
def test_base64_with_noise_in_it_is_no_result(noise: bytes) -> None:
    """It is not what was written."""
    written = wire.encode_result(Ok(value=Absent()))
    with pytest.raises(ValueError):
        decode_result(written[:8] + noise + written[8:])


def test_a_result_past_any_command_is_not_decoded() -> None:
    """It is refused by its size."""
    with pytest.raises(ValueError, match="larger"):
        decode_result(b"A" * (4 * MAX_COMMAND_BYTES + 4))


@given(st.binary(max_size=200))
@example(b"\x91" * 200_000)
@example(b"\x83\xa4type\xa8answered\xa8revision\xc0\xa6result" + b"\x91" * 200_000)
def test_garbage_is_neither_query_nor_answer(data: bytes) -> None:
    """Only msgspec's errors, also for what nests without end."""
    for decode in (queries.decode_query, queries.decode_answer):
        with pytest.raises(msgspec.MsgspecError):
            decode(data)


def test_what_rq_shows_of_a_job_holds_nothing_personal() -> None:
    """It ends up in logs."""
    assert (wire.describe(PUT), wire.describe(DELETE)) == ("feedback put", "feedback delete")


def test_a_traceback_is_kept_as_rq_keeps_it() -> None:
    """Base64 of zlib; text that has no UTF-8 is escaped."""
    raw = wire.encode_traceback("Traceback: \udcff é")
    assert zlib.decompress(b64decode(raw)).decode() == "Traceback: \\udcff é"
