"""Waiting and asking, step by step: answers in every form, and what comes when there is none."""

from base64 import b64encode
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import pytest
from redis.exceptions import ResponseError

from feedback import keys
from feedback.asking import MAX_QUERIES
from feedback.errors import (
    CommandExpired,
    CommandFailed,
    CommandIdReused,
    CommandUnknown,
    FeedbackError,
    InvalidRequest,
    LogUnreadable,
    QueueUnavailable,
    ResultTimeout,
    StoreUnavailable,
)
from feedback.failures import encode_failure, failure_of
from feedback.model import Item
from feedback.queries import (
    Answer,
    Answered,
    Failed,
    ListQuery,
    OutcomeQuery,
    Query,
    Unknown,
    Unsupported,
    decode_query,
    encode_answer,
)
from feedback.results import Absent, ItemList, Ok, Result
from feedback.wire import encode_result, encode_traceback
from tests.unit.staged import LOST, NOW_MS, Args, Stage

ID = "0b7d3c1e-5a52-4c1a-9a37-6f3b6c0f1d2e"
STREAM = keys.results(ID)
ITEM = Item(message_id="m", rating="positive", version="v", created_at=1, updated_at=1)
DONE = {b"type": b"1", b"return_value": encode_result(Ok(value=ITEM)), b"revision": b"7"}
BROKEN = {b"type": b"2", b"exc_string": encode_traceback("Traceback")}
Entry = tuple[bytes, dict[bytes, bytes]]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(monkeypatch)
    stage.connect()
    return stage


def entries(*found: Entry) -> list[Any]:
    """XREAD's reply in RESP2."""
    return [[STREAM.encode(), flat(found)]]


def flat(found: Sequence[Entry]) -> list[Any]:
    """Entries as the server gives them, in either protocol."""
    return [[entry_id, list(chain.from_iterable(fields.items()))] for entry_id, fields in found]


class Answering:
    """Gives the replies in turn, whatever is asked; then nothing more comes."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    def __call__(self, args: Args) -> Any:
        return self.replies.pop(0) if self.replies else None


def waited(stage: Stage, *replies: Any, timeout: float = 30) -> Result:
    return stage.run(stage.flows.wait(ID, timeout), Answering(*replies))


@pytest.mark.parametrize(
    "reply",
    [
        entries((b"1-0", DONE)),
        {STREAM.encode(): flat([(b"1-0", DONE)])},
        entries((b"1-0", BROKEN), (b"2-0", DONE)),
    ],
    ids=["RESP2", "RESP3", "after a failure"],
)
def test_an_answer_is_read_in_one_round_trip(stage: Stage, reply: Any) -> None:
    """In either protocol; the last entry counts. It carries the revision."""
    result = waited(stage, reply)
    assert (result, result.revision) == (Ok(value=ITEM), 7)
    assert stage.calls == [("XREAD", "BLOCK", 4000, "STREAMS", STREAM, b"0-0")]


def test_waiting_is_blocking_not_polling(stage: Stage) -> None:
    """As long as the connection allows, and never past the timeout."""
    began = stage.clock.now_s
    with pytest.raises(ResultTimeout) as caught:
        waited(stage, timeout=10)
    assert [args[2] for args in stage.calls] == [4000, 4000, 2000]
    assert stage.clock.now_s - began == 10
    assert (caught.value.command_id, caught.value.seconds) == (ID, 10)
    assert stage.slept_s == 0


def test_no_time_left_still_looks_once(stage: Stage) -> None:
    """The answer may lie there already."""
    assert waited(stage, entries((b"1-0", DONE)), timeout=0) == Ok(value=ITEM)
    with pytest.raises(ResultTimeout):
        waited(stage, timeout=0)
    assert [args[2] for args in stage.calls] == [1, 1]


def test_a_lost_answer_is_waited_for_again(stage: Stage) -> None:
    """From where the flow was."""
    assert waited(stage, LOST, LOST, entries((b"1-0", DONE))) == Ok(value=ITEM)
    assert len(set(map(str, stage.calls))) == 1


def test_a_server_that_went_away_leaves_the_outcome_open(stage: Stage) -> None:
    """The command was accepted: `ResultTimeout` says that it may still be applied, `QueueUnavailable` would not."""
    began = stage.clock.now_s
    with pytest.raises(ResultTimeout) as caught:
        stage.run(stage.flows.wait(ID, 20), lambda args: LOST)
    assert 18 < stage.clock.now_s - began <= 20
    assert isinstance(caught.value.__cause__, QueueUnavailable)


def test_a_server_that_refuses_is_said_at_once(stage: Stage) -> None:
    """Waiting would not help."""
    with pytest.raises(QueueUnavailable):
        waited(stage, ResponseError("NOPERM this user has no permissions"))
    assert len(stage.calls) == 1


@pytest.mark.parametrize("status", [b"queued", b"started", b"finished"])
def test_a_failure_that_was_requeued_is_waited_past(stage: Stage, status: bytes) -> None:
    """An operator tries it again, and it may succeed meanwhile: the next entry counts, read from behind it."""
    replies = entries((b"5-0", BROKEN)), [status, b"old"], entries((b"6-0", DONE))
    assert waited(stage, *replies) == Ok(value=ITEM)
    assert stage.calls[1] == ("HMGET", keys.job(ID), "status", "failure")
    assert stage.calls[2][-1] == b"5-0"


@pytest.mark.parametrize("error", [CommandExpired("late"), LogUnreadable("s", "/p", "EIO"), StoreUnavailable("down")])
def test_a_failure_comes_as_its_type(stage: Stage, error: FeedbackError) -> None:
    """With its sentence and members."""
    with pytest.raises(type(error)) as caught:
        waited(stage, entries((b"1-0", BROKEN)), [b"failed", encode_failure(failure_of(error))])
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


def test_a_failure_keeps_its_type_when_the_job_is_gone(stage: Stage) -> None:
    """After a failover, say, between the two questions: the entry says it too."""
    told = BROKEN | {b"failure": encode_failure(failure_of(CommandExpired("late")))}
    with pytest.raises(CommandExpired, match="late"):
        waited(stage, entries((b"1-0", told)), [None, None])


@pytest.mark.parametrize("failure", [None, b"", b"garbage", b"\x91" * 100_000, msgspec.msgpack.encode({"code": 1})])
@pytest.mark.parametrize("status", [b"failed", None])
def test_a_failure_without_a_readable_name_is_command_failed(
    stage: Stage, failure: bytes | None, status: bytes | None
) -> None:
    """A stock worker's, a foreign job's, or one whose job is gone."""
    with pytest.raises(CommandFailed, match=ID):
        waited(stage, entries((b"1-0", BROKEN)), [status, failure])


@pytest.mark.parametrize(
    "fields",
    [
        {b"type": b"1"},
        {b"type": b"1", b"return_value": b""},
        {b"type": b"1", b"return_value": b"!"},
        {b"type": b"1", b"return_value": b64encode(b"\x91" * 100_000)},
        {b"type": b"1", b"return_value": b64encode(msgspec.msgpack.encode({"ok": True}))},
        DONE | {b"revision": b"x"},
    ],
    ids=range(6),
)
def test_an_answer_that_is_none_is_command_failed(stage: Stage, fields: dict[bytes, bytes]) -> None:
    """What lies in Redis is not trusted."""
    with pytest.raises(CommandFailed, match="not one of the contract's"):
        waited(stage, entries((b"1-0", fields)))


def test_a_stock_workers_answer_has_its_revision_in_the_job(stage: Stage) -> None:
    """RQ wrote the stream itself."""
    stock = {b"type": b"1", b"return_value": encode_result(Ok(value=Absent()))}
    result = waited(stage, entries((b"1-0", stock)), b"9")
    assert (result, result.revision) == (Ok(value=Absent()), 9)
    assert stage.calls[1] == ("HGET", keys.job(ID), "revision")
    assert waited(stage, entries((b"1-0", stock)), None).revision is None


class Projector:
    """Answers queries; `silent` times it does not."""

    def __init__(self, answer: Answer | bytes, *, silent: int = 0) -> None:
        self.answer = answer if isinstance(answer, bytes) else encode_answer(answer)
        self.silent = silent
        self.queries: list[Query] = []

    def __call__(self, args: Args) -> Any:
        match args:
            case ("EXISTS", *_):
                return 0
            case ("RPUSH", keys.QUERIES, document):
                self.queries.append(decode_query(document))
                return 1
            case ("LTRIM" | "EXPIRE", keys.QUERIES, *_):
                return 1
        assert args[0] == "BLPOP"
        assert args[1] == keys.reply(self.queries[-1].query_id)
        self.silent -= 1
        return None if self.silent >= 0 else [args[1].encode(), self.answer]


LISTED = Answered(result=msgspec.to_builtins(Ok(value=ItemList(items=(ITEM,)))), revision=3)


def listed(stage: Stage, projector: Projector, at_least: int | None = None, timeout: float = 30) -> Result:
    return stage.run(stage.flows.list_feedback("s", at_least, timeout), projector)


ASKED = ["RPUSH", "LTRIM", "EXPIRE", "BLPOP"]


def test_a_list_takes_one_write(stage: Stage) -> None:
    """The query carries what was asked, and when nobody waits any more; the list of queries stays bounded."""
    projector = Projector(LISTED)
    result = listed(stage, projector, at_least=2)
    assert (result, result.revision) == (Ok(value=ItemList(items=(ITEM,))), 3)
    assert stage.names() == ASKED
    assert stage.calls[1][2:] == (-MAX_QUERIES, -1)
    (query,) = projector.queries
    assert isinstance(query, ListQuery)
    assert (query.session_id, query.at_least, query.deadline) == ("s", 2, NOW_MS + 30_000)


def test_an_unanswered_query_is_put_again(stage: Stage) -> None:
    """Every two seconds, the same one: the server may have lost it."""
    projector = Projector(LISTED, silent=3)
    assert listed(stage, projector).revision == 3
    assert len(projector.queries) == 4
    assert len(set(map(repr, projector.queries))) == 1
    assert [args[2] for args in stage.calls if args[0] == "BLPOP"] == ["2.000"] * 4


@pytest.mark.parametrize("timeout", [0, 0.0004, 0.3, 7])
def test_a_list_that_nobody_answers_ends_in_time(stage: Stage, timeout: float) -> None:
    """Never by a read that blocks for ever (asking Redis for 0 seconds); and it looks at least once."""
    began = stage.clock.now_s
    with pytest.raises(QueueUnavailable, match="projector"):
        listed(stage, Projector(LISTED, silent=1000), timeout=timeout)
    assert stage.clock.now_s - began <= timeout + 0.002
    assert stage.names()[:4] == ASKED


def test_an_endless_timeout_is_one(stage: Stage) -> None:
    """Its deadline still fits the query."""
    projector = Projector(LISTED)
    listed(stage, projector, timeout=1e300)
    assert NOW_MS < projector.queries[0].deadline < 2**53


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage", b"\x91" * 100_000, Answered(result={"ok": True}, revision=1), Answered(result=1, revision=None)],
    ids=range(5),
)
def test_an_unreadable_answer_is_command_failed(stage: Stage, answer: Answer | bytes) -> None:
    """Typed, like everything that leaves this package."""
    with pytest.raises(CommandFailed):
        listed(stage, Projector(answer))


def test_a_failed_question_comes_as_its_type(stage: Stage) -> None:
    """For lists and outcomes alike; an answer to no list is none."""
    failed = Failed(failure_of(LogUnreadable("s", "/p", "EIO")))
    with pytest.raises(LogUnreadable, match="EIO"):
        listed(stage, Projector(failed))
    with pytest.raises(LogUnreadable):
        stage.run(stage.flows.outcome(ID, 30), Projector(failed))
    for answer in (Unknown(), Unsupported()):
        with pytest.raises(CommandFailed, match="upgrade the older side"):
            listed(stage, Projector(answer))


@pytest.mark.parametrize("session_id", [None, 1, b"s", "\ud800", ["s"]])
def test_a_malformed_session_id_is_not_sent(stage: Stage, session_id: Any) -> None:
    """Refused with its path."""
    with pytest.raises(InvalidRequest) as caught:
        stage.run(stage.flows.list_feedback(session_id, None, 1), Projector(LISTED))
    assert (caught.value.path, stage.calls) == ("$.sessionId", [])


@pytest.mark.parametrize("at_least", [-1, True, 1.0, "1", 2**63, 10**5000], ids=range(6))
def test_a_malformed_revision_is_not_sent(stage: Stage, at_least: Any) -> None:
    """Refused with its path."""
    with pytest.raises(InvalidRequest) as caught:
        listed(stage, Projector(LISTED), at_least=at_least)
    assert (caught.value.path, stage.calls) == ("atLeast", [])


def test_the_outcome_of_a_waiting_command_is_waited_for(stage: Stage) -> None:
    """Its job or its answer is still in Redis; one timeout bounds it all."""
    began = stage.clock.now_s
    result = stage.run(stage.flows.outcome(ID.upper(), 30), Answering(1, entries((b"1-0", DONE))))
    assert result == Ok(value=ITEM)
    assert stage.calls[0] == ("EXISTS", keys.job(ID), keys.results(ID))

    def slow(args: Args) -> Any:
        stage.clock.now_s += 1 if args[0] == "EXISTS" else 0
        return 1 if args[0] == "EXISTS" else None

    with pytest.raises(ResultTimeout):
        stage.run(stage.flows.outcome(ID, 10), slow)
    assert stage.clock.now_s - began == 10


def test_the_outcome_of_a_command_that_redis_forgot_is_asked_for(stage: Stage) -> None:
    """From the store, through the projector; nothing there is `CommandUnknown`."""
    recorded = Answered(result=msgspec.to_builtins(Ok(value=Absent())), revision=5)
    projector = Projector(recorded)
    result = stage.run(stage.flows.outcome(ID, 30), projector)
    assert (result, result.revision) == (Ok(value=Absent()), 5)
    (query,) = projector.queries
    assert isinstance(query, OutcomeQuery)
    assert query.command_id == ID
    with pytest.raises(CommandUnknown, match=ID):
        stage.run(stage.flows.outcome(ID, 30), Projector(Unknown()))


def test_a_later_use_of_the_id_does_not_hide_the_answer(stage: Stage) -> None:
    """What stands in Redis is that one's refusal; the record is the first one's."""
    refusal = encode_failure(failure_of(CommandIdReused("used before")))
    projector = Projector(Answered(result=msgspec.to_builtins(Ok(value=ITEM)), revision=3))
    replies = Answering(1, entries((b"1-0", BROKEN)), [b"failed", refusal])
    result = stage.run(stage.flows.outcome(ID, 30), lambda args: replies(args) if replies.replies else projector(args))
    assert (result, result.revision) == (Ok(value=ITEM), 3)


def test_an_outcome_needs_a_command_id(stage: Stage) -> None:
    """Anything else is not sent: it would become part of a key."""
    for value in ("", "*", 7, None):
        with pytest.raises(InvalidRequest):
            stage.run(stage.flows.outcome(value, 30), Answering())
    assert stage.calls == []
