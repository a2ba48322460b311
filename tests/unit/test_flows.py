"""Enqueueing, step by step: what is sent, sent again, and given up, without a server and without waiting."""

from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from redis.exceptions import AuthenticationError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from feedback.commands import MAX_COMMAND_BYTES
from feedback.envelopes import MAX_CHUNK, MAX_CHUNK_BYTES
from feedback.errors import CommandIdReused, FeedbackError, InvalidRequest, QueueFull, QueueUnavailable
from feedback.flows import Flows, Submitted
from feedback.requests import Delete, Request
from feedback.results import NoteBlank, NoteTooLarge, Rejected
from feedback.wire import decode_job
from tests.unit.staged import LOST, NOW_MS, TOPOLOGY, Args, Stage, enqueued, put, serving


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def submitted(stage: Stage, *requests: Request, server: Any = serving, seconds: float = 30) -> list[Submitted]:
    return stage.run(stage.flows.submit(requests, stage.deadline(seconds)), server)


class Losing:
    """Loses the first answers to some command, then serves."""

    def __init__(self, name: str, *errors: Exception) -> None:
        self.name = name
        self.errors = list(errors)

    def __call__(self, args: Args) -> Any:
        return self.errors.pop(0) if self.errors and args[0] == self.name else serving(args)


def test_a_command_takes_two_round_trips_at_first_and_one_later(stage: Stage) -> None:
    """The topology is asked for once; the Session's partition is CRC-32 of its id."""
    (one,) = submitted(stage, put("s-é"))
    assert stage.names() == ["HMGET", "EVALSHA"]
    assert enqueued(stage.calls[1]) == [(one.command_id, crc32("s-é".encode()) % 4)]
    command = decode_job(stage.calls[1][19])
    assert (command.command_id, command.session_id) == (one.command_id, "s-é")
    assert command.expires_at == NOW_MS + 24 * 3600 * 1000
    assert (one.result, one.error) == (None, None)
    submitted(stage, put("t"))
    assert stage.names() == ["HMGET", "EVALSHA", "EVALSHA"]
    assert stage.slept_s == 0


def test_a_lost_answer_is_asked_for_again(stage: Stage) -> None:
    """The very same command, with growing pauses: the script is safe to repeat."""
    stage.connect()
    submitted(stage, put("s"), server=Losing("EVALSHA", LOST, RedisTimeoutError("timeout"), LOST))
    assert len(stage.calls) == 4
    assert len(set(map(str, stage.calls))) == 1
    assert 0 < stage.slept_s < 0.1


@pytest.mark.parametrize(
    "reply",
    [
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MISCONF Errors writing to the AOF file",
        "OOM command not allowed",
        "BUSY Redis is busy running a script",
        "max number of clients reached",
    ],
)
def test_trouble_that_passes_is_waited_for(stage: Stage, reply: str) -> None:
    """The server itself says that it will."""
    stage.connect()
    submitted(stage, put("s"), server=Losing("EVALSHA", ResponseError(reply)))
    assert stage.names() == ["EVALSHA", "EVALSHA"]


@pytest.mark.parametrize(
    "error",
    [ResponseError("WRONGTYPE Operation against a key"), AuthenticationError("WRONGPASS"), ResponseError("ERR")],
)
def test_trouble_that_stays_is_said_at_once(stage: Stage, error: Exception) -> None:
    """With its cause."""
    stage.connect()
    with pytest.raises(QueueUnavailable) as caught:
        submitted(stage, put("s"), server=Losing("EVALSHA", error))
    assert caught.value.__cause__ is error
    assert (len(stage.calls), stage.slept_s) == (1, 0)


def test_the_deadline_is_honoured(stage: Stage) -> None:
    """A server that is gone is tried until then, and no longer."""
    stage.connect()
    began = stage.clock.now_s
    with pytest.raises(QueueUnavailable):
        submitted(stage, put("s"), server=lambda args: LOST, seconds=30)
    assert 28 < stage.clock.now_s - began <= 30
    assert len(stage.calls) > 20


def test_a_server_that_never_answered_is_given_up_early(stage: Stage) -> None:
    """Within two seconds: the URL is probably wrong."""
    began = stage.clock.now_s
    with pytest.raises(QueueUnavailable):
        submitted(stage, put("s"), server=lambda args: LOST)
    assert 1 < stage.clock.now_s - began <= 2


def test_a_deadline_that_is_past_still_tries_once(stage: Stage) -> None:
    """Zero means: now or not at all."""
    stage.connect()
    assert submitted(stage, put("s"), seconds=0)[0].error is None
    with pytest.raises(QueueUnavailable):
        submitted(stage, put("s"), server=lambda args: LOST, seconds=0)
    assert (len(stage.calls), stage.slept_s) == (2, 0)


def test_a_server_that_forgot_the_script_is_taught(stage: Stage) -> None:
    """NOSCRIPT, then the source; a lost answer to that is asked for again too."""
    stage.connect()

    def forgetful(args: Args) -> Any:
        if args[0] == "EVALSHA":
            return NoScriptError("No matching script")
        return LOST if len(stage.calls) == 2 else serving(args)

    (one,) = submitted(stage, put("s"), server=forgetful)
    assert one.error is None
    assert stage.names() == ["EVALSHA", "EVAL", "EVAL"]
    assert "redis.call" in stage.calls[1][1]


def test_a_stale_topology_is_loaded_again(stage: Stage) -> None:
    """The command goes to the new generation's partition."""
    stage.connect()

    def repartitioned(args: Args) -> Any:
        if args[0] == "HMGET":
            return [b"2", b"1024", b"8", None]
        return b"stale" if args[5] == 1 else serving(args)

    submitted(stage, put("s"), server=repartitioned)
    assert stage.names() == ["EVALSHA", "HMGET", "EVALSHA"]
    assert [(args[5], args[6], enqueued(args)[0][1]) for args in stage.calls[::2]] == [
        (1, 4, crc32(b"s") % 4),
        (2, 1024, crc32(b"s") % 1024),
    ]


def test_a_topology_that_goes_on_changing_is_given_up(stage: Stage) -> None:
    """At the deadline, not never."""
    stage.connect()

    def restless(args: Args) -> Any:
        stage.clock.now_s += 1
        return TOPOLOGY if args[0] == "HMGET" else b"stale"

    with pytest.raises(QueueUnavailable, match="changing"):
        submitted(stage, put("s"), server=restless, seconds=5)
    assert len(stage.calls) < 10


def test_a_server_that_no_worker_set_up_yet_is_waited_for(stage: Stage) -> None:
    """Hosts and workers start in any order; past the deadline, the message says what is missing."""
    replies = [[None] * 4, [b"1", None, b"8", None], TOPOLOGY]
    submitted(stage, put("s"), server=lambda args: replies.pop(0) if args[0] == "HMGET" else serving(args))
    assert stage.names() == ["HMGET"] * 3 + ["EVALSHA"]
    stage.flows = Flows(clock_ms=lambda: NOW_MS)
    began = stage.clock.now_s
    with pytest.raises(QueueUnavailable, match="feedback worker"):
        submitted(stage, put("s"), server=lambda args: [None] * 4, seconds=10)
    assert 9 < stage.clock.now_s - began <= 10


@pytest.mark.parametrize(
    "reply", [[b"1", b"x", b"8", None], [b"1", b"0", b"8", None], [b"", b"4", b"8", None], [b"1", b"4", b"8", b"x"]]
)
def test_a_topology_that_is_none_is_said(stage: Stage, reply: list[bytes]) -> None:
    """What lies in Redis is not trusted to be a number."""
    with pytest.raises(QueueUnavailable, match="readable"):
        submitted(stage, put("s"), server=lambda args: reply)


def test_a_blank_note_is_never_sent_anywhere(stage: Stage) -> None:
    """Not even a question."""
    for note in ("", " \n", "\ufeff\u3000"):
        (one,) = submitted(stage, put("s", note=note))
        assert one.result == Rejected(error=NoteBlank())
        assert one.result.revision is None
    assert stage.calls == []


def test_a_large_note_is_answered_by_the_bound(stage: Stage) -> None:
    """In bytes of UTF-8, asked anew before the refusal; the command itself is not sent."""
    (one,) = submitted(stage, put("s", note="éééé."))
    assert one.result == Rejected(error=NoteTooLarge(max_bytes=8, actual_bytes=9))
    assert stage.names() == ["HMGET", "HMGET"]
    assert submitted(stage, put("s", note="éééé"))[0].result is None


def test_a_bound_that_was_raised_counts(stage: Stage) -> None:
    """A client that runs for long knows an old one."""
    stage.connect()
    raised = [b"1", b"4", b"9", None]
    (one,) = submitted(
        stage, put("s", note="éééé."), server=lambda args: raised if args[0] == "HMGET" else serving(args)
    )
    assert (one.result, one.error, stage.names()) == (None, None, ["HMGET", "EVALSHA"])


def test_a_note_past_any_command_is_too_large_not_malformed(stage: Stage) -> None:
    """It is a business answer, whatever its size."""
    (one,) = submitted(stage, put("s", note="x" * (2 * MAX_COMMAND_BYTES)))
    assert one.result == Rejected(error=NoteTooLarge(max_bytes=8, actual_bytes=2 * MAX_COMMAND_BYTES))


def test_outcomes_stand_in_the_order_of_the_requests(stage: Stage) -> None:
    """Whatever became of each: refused at the boundary, enqueued, known, of another payload, or no room."""
    ids = [str(UUID(int=number)) for number in range(6)]
    notes = [" ", None, None, "x" * 9, None, None]
    replies = [b"enqueued", b"known", b"reused", b"full"]
    outcomes = submitted(
        stage,
        *(put("s", command_id=name, note=note) for name, note in zip(ids, notes, strict=True)),
        server=lambda args: TOPOLOGY if args[0] == "HMGET" else replies,
    )
    assert [one.command_id for one in outcomes] == ids
    assert [name for name, _ in enqueued(stage.calls[-1])] == [ids[1], ids[2], ids[4], ids[5]]
    kinds: list[type[FeedbackError] | None] = [None, None, None, None, CommandIdReused, QueueFull]
    assert [type(one.error) if one.error else None for one in outcomes] == kinds
    assert [one.result is not None for one in outcomes] == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    "bad",
    [put("\ud800"), put("s", rating="good"), Delete("s", "m", command_id="x"), put("s" * MAX_COMMAND_BYTES), None],
)
def test_one_malformed_request_stops_them_all(stage: Stage, bad: Any) -> None:
    """Also the last one of many: nothing was enqueued."""
    with pytest.raises(InvalidRequest):
        submitted(stage, *[put("s")] * (MAX_CHUNK + 1), bad)
    assert stage.calls == []


def test_many_are_sent_in_few_round_trips_and_in_order(stage: Stage) -> None:
    """No call grows without bound."""
    stage.connect()
    outcomes = submitted(stage, *(put(f"s{number}") for number in range(2 * MAX_CHUNK + 1)))
    sent = [[name for name, _ in enqueued(args)] for args in stage.calls]
    assert list(map(len, sent)) == [MAX_CHUNK, MAX_CHUNK, 1]
    assert [name for names in sent for name in names] == [one.command_id for one in outcomes]


def test_large_commands_are_sent_in_smaller_lots(stage: Stage) -> None:
    """By their bytes."""
    large = MAX_COMMAND_BYTES - 10_000
    submitted(stage, *(put("s" * large) for _ in range(20)))
    assert [len(enqueued(args)) for args in stage.calls[1:]] == [8, 8, 4]
    assert 8 * large <= MAX_CHUNK_BYTES


def test_nothing_to_submit_is_nothing_to_send(stage: Stage) -> None:
    """No round trip."""
    assert submitted(stage) == []
    assert stage.calls == []


def test_what_was_enqueued_in_part_is_known_by_its_ids(stage: Stage) -> None:
    """Those that the client made as well: without them nobody could send the rest without doing the first twice."""
    stage.connect()
    requests = [put("s", command_id=str(UUID(int=7))), *(put("s") for _ in range(MAX_CHUNK))]
    chunks = 0

    def server(args: Args) -> Any:
        nonlocal chunks
        chunks += args[0] == "EVALSHA"
        return ResponseError("NOPERM no rights") if chunks > 1 else serving(args)

    with pytest.raises(QueueUnavailable, match="NOPERM") as caught:
        submitted(stage, *requests, server=server)
    first = [command_id for command_id, _ in enqueued(stage.calls[0])]
    assert len(first) == MAX_CHUNK
    assert caught.value.command_ids[:MAX_CHUNK] == tuple(first)
    assert len(set(caught.value.command_ids)) == len(requests)
    assert first[0] == str(UUID(int=7))
