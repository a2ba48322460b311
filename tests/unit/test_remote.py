"""Evidence from elsewhere, step by step: who is asked what, what counts, and for which commands."""

import math

import msgspec
import pytest

from barrier.judging import Judge
from barrier.rules import Answer, Barrier, FlushNeeded, Need, Unrated
from feedback.agent_desk import Asked, Told, unanswered
from feedback.commands import Command, DeleteCommand, PutCommand, check_command, digest_of
from feedback.errors import (
    AgentUnanswered,
    CommandFailed,
    HostUnknown,
    InvalidRequest,
    LogCorrupt,
    LogUnreadable,
    SettingsInvalid,
)
from feedback.evidence import (
    MOST_BYTES,
    MOST_ID_CHARS,
    REPLY_MARK,
    Evidence,
    EvidenceReply,
    EvidenceRequest,
    Found,
    LogAbsent,
    LogFailed,
    LogFound,
    LogQuestion,
    RemoteLog,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    told,
)
from feedback.flushing import LiveOwner
from feedback.hosts import Sight
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from feedback.settings import load_settings
from worker.claims import Claim
from worker.parking import ParkingLot
from worker.remote import EvidenceNeeded, OutOfTurn, PlacedBarrier, in_turn, question_of

LIFE = SessionIdentity(created_at=1, cwd="/w")
OWNER = LiveOwner(owner_id="o", session_id="s", identity=LIFE)


def put(message_id: str, host: str | None = "a", session_id: str = "s") -> PutCommand:
    return PutCommand(
        schema=1,
        command_id=f"put-{message_id}",
        session_id=session_id,
        message_id=message_id,
        if_version=None,
        expires_at=0,
        host=host,
        rating="positive",
    )


def delete(message_id: str, host: str | None = "a", session_id: str = "s") -> DeleteCommand:
    return DeleteCommand(
        schema=1,
        command_id=f"delete-{message_id}",
        session_id=session_id,
        message_id=message_id,
        if_version=None,
        expires_at=0,
        host=host,
    )


def claims(*commands: Command) -> list[Claim]:
    return [Claim(PartitionId(1, 0), one.command_id.encode(), one, b"", 1) for one in commands]


def ids(claimed: list[Claim]) -> list[str]:
    return [one.command.command_id for one in claimed]


def evidence(*message_ids: str, host: str = "a") -> Evidence:
    return Evidence(host, RemoteLog(LIFE, dict.fromkeys(message_ids, True), None))


class Here:
    """The barrier of logs that are here."""

    def check(self, needs: dict[str, Need]) -> dict[str, Barrier]:
        return {session_id: Unrated(LIFE) for session_id in needs}


@pytest.mark.parametrize(
    ("sight", "host", "asked"),
    [
        (Sight(logs=True), None, None),
        (Sight(logs=True), "a", "a"),
        (Sight(logs=True, host="a"), "a", None),
        (Sight(logs=True, host="a"), "b", "b"),
        (Sight(logs=True, host="a"), None, None),
        (Sight(logs=False), "a", "a"),
        (Sight(logs=False, host="a"), "a", "a"),
    ],
)
def test_who_looks_where(sight: Sight, host: str | None, asked: str | None) -> None:
    """Its own logs, and those of who names no host, are looked at by whoever sees logs; all others by agents."""
    assert sight.agent_for(host) == asked


def test_who_sees_no_logs_must_be_told_where_they_are() -> None:
    with pytest.raises(HostUnknown, match="FEEDBACK_HOST"):
        Sight(logs=False).agent_for(None)


def test_each_session_is_judged_where_its_log_is() -> None:
    """Without an answer evidence is needed; a failure to get it is the answer."""
    barrier = PlacedBarrier(Sight(logs=True, host="own"), Here())  # type: ignore[arg-type]  # a dict will do
    failed = LogUnreadable("f", "/p", "EIO")
    answers = barrier.check(
        {
            "local": Need(durable=True),
            "own": Need(durable=True, host="own"),
            "asked": Need(durable=True, host="a"),
            "found": Need(durable=True, host="a", answer=evidence("m")),
            "absent": Need(durable=True, host="a", answer=Evidence("a", None)),
            "failed": Need(durable=True, host="a", answer=failed),
        }
    )
    assert isinstance(answers["asked"], EvidenceNeeded)
    assert answers["asked"].host == "a"
    assert answers | {"asked": None} == {
        "local": Unrated(LIFE),
        "own": Unrated(LIFE),
        "asked": None,
        "found": evidence("m").log,
        "absent": None,
        "failed": failed,
    }
    blind = PlacedBarrier(Sight(logs=False), None).check({"s": Need(durable=True)})
    assert isinstance(blind["s"], HostUnknown)


@pytest.mark.parametrize(
    ("commands", "answer", "now"),
    [
        ([put("1"), delete("2"), put("3")], None, 3),
        ([put("1"), put("2", host="b"), put("3")], None, 1),
        ([put("1", host=None), put("2"), put("3", host=None)], None, 1),
        ([put("1"), put("2")], evidence("1", "2"), 2),
        ([put("1"), delete("x"), put("2"), put("1")], evidence("1"), 2),
        ([put("1"), put("2", host="b")], Evidence("a", None), 1),
        ([put("1"), put("2")], Evidence("a", None), 2),
        ([put("1"), put("2"), put("3", host="b")], AgentUnanswered("a", "no answer"), 2),
    ],
)
def test_one_batch_judges_a_session_by_one_log_and_what_was_asked(
    commands: list[Command], answer: Answer | None, now: int
) -> None:
    """In order: from the first command on that has to wait, all of its Session do; of others none."""
    other = put("other", host="b", session_id="t")
    judged, later = in_turn(claims(*commands, other), {} if answer is None else {"s": answer})
    assert ids(judged) == [*(one.command_id for one in commands[:now]), other.command_id]
    assert ids(later) == [one.command_id for one in commands[now:]]


def test_a_question_is_about_the_leading_commands_on_that_host() -> None:
    """Each message once; a delete asks for the identity alone; and no more than fits into a request."""
    assert question_of("a", [put("1"), delete("2"), put("1"), put("3"), put("4", host="b"), put("5")]) == LogQuestion(
        session_id="s", message_ids=("1", "3"), durable=True
    )
    assert question_of("a", [delete("2")]) == LogQuestion(session_id="s", message_ids=(), durable=False)
    large = [put(f"{n}".rjust(MOST_ID_CHARS // 2, "x")) for n in range(3)]
    question = question_of("a", large)
    assert len(question.message_ids) == 2
    request = EvidenceRequest(request_id="r", reply_to="w", host="a", sessions=(question,), deadline=1)
    assert decode_request(encode_request(request)) == request


def lot_waiting_for_evidence(*commands: Command) -> ParkingLot:
    lot = ParkingLot(2, lambda: 0.0)
    lot.settle(claims(*commands), [(claim, EvidenceNeeded("a")) for claim in claims(*commands)], 0.0)
    return lot


def test_a_session_waits_for_its_agent_and_is_tried_with_the_answer() -> None:
    """Asked once; an answer to another request, or about another Session, changes nothing."""
    lot = lot_waiting_for_evidence(put("1"), put("2"))
    assert lot.next_due() == math.inf
    ((host, question),) = lot.evidence_needed()
    assert (host, question.message_ids) == ("a", ("1", "2"))
    asked = Asked("r", "a", ("s",), 5.0, absent=False)
    lot.evidence_requested("s", asked, 1.0)
    assert (lot.evidence_needed(), lot.next_due()) == ([], 5.0)
    assert lot.admit(claims(put("3"))[0])
    lot.evidence_answered(Told("another", "s", evidence("1", "2")), 2.0)
    lot.evidence_answered(Told("r", "t", evidence("1", "2")), 2.0)
    assert lot.due(2.0).claims == []
    lot.evidence_answered(Told("r", "s", evidence("1", "2")), 2.0)
    due = lot.due(2.0)
    assert ids(list(due.claims)) == ["put-1", "put-2"], "what came after the question was not asked about"
    assert due.answers == {"s": evidence("1", "2")}
    assert lot.settle(due.claims, [], 2.0) == []
    assert lot.due(2.0).answers == {}, "evidence is good for one batch"


def test_time_that_is_up_and_an_agent_that_is_absent_are_failures_that_are_retried() -> None:
    """The first at the end of patience, the second at once; after the last try the first command fails."""
    lot = lot_waiting_for_evidence(put("1"), put("2"))
    assert len(lot.evidence_needed()) == 1
    silent = Asked("r", "a", ("s",), 5.0, absent=False)
    lot.evidence_requested("s", silent, 1.0)
    due = lot.due(5.0)
    error = due.answers["s"]
    assert isinstance(error, AgentUnanswered)
    assert str(error) == str(unanswered(silent))
    assert lot.settle(due.claims, [(claim, error) for claim in due.claims], 5.0) == []
    lot.evidence_answered(Told("r", "s", evidence("1", "2")), 5.5)
    retried = lot.due(9.0)
    assert retried.answers == {}, "an answer that comes later is not listened to"
    lot.settle(retried.claims, [(claim, EvidenceNeeded("a")) for claim in retried.claims], 9.0)
    assert len(lot.evidence_needed()) == 1
    lot.evidence_requested("s", Asked("r2", "a", ("s",), 15.0, absent=True), 9.0)
    due = lot.due(9.0)
    error = due.answers["s"]
    assert isinstance(error, AgentUnanswered)
    ((given_up, _),) = lot.settle(due.claims, [(claim, error) for claim in due.claims], 9.0)
    assert given_up.command.command_id == "put-1"


def test_what_is_out_of_turn_is_tried_next_and_that_is_no_attempt() -> None:
    lot = ParkingLot(1, lambda: 0.0)
    both = claims(put("1"), put("2", host="b"))
    assert lot.settle(both, [(both[1], OutOfTurn())], 1.0) == []
    assert lot.due(1.0).claims == [both[1]]


def test_messages_are_closed_and_bounded() -> None:
    reply = EvidenceReply(
        request_id="r",
        host="a",
        agent_id="g",
        root="/r",
        sessions=(Found("s", LogFound(identity=LIFE, eligible=(True,), revision="1.2")), Found("t", LogAbsent())),
    )
    assert decode_reply(encode_reply(reply)) == reply
    for garbage in (b"", b"\xc1", b"\x80", b"\x91" * 100_000, bytes(MOST_BYTES + 1), msgspec.msgpack.encode({"x": 1})):
        with pytest.raises(msgspec.MsgspecError):
            decode_reply(REPLY_MARK + garbage)
        with pytest.raises(msgspec.MsgspecError):
            decode_request(garbage)


def test_a_finding_answers_for_all_that_was_asked_or_nothing() -> None:
    question = LogQuestion(session_id="s", message_ids=("1", "2"), durable=True)
    assert told("a", question, LogAbsent()) == Evidence("a", None)
    assert told("a", question, LogFound(identity=LIFE, eligible=(True,))) is None
    found = told("a", question, LogFound(identity=LIFE, eligible=(True, False), revision="7"))
    assert found == Evidence("a", RemoteLog(LIFE, {"1": True, "2": False}, "7"))


class Broken:
    """A barrier that breaks on one Session."""

    def check(self, needs: dict[str, Need]) -> dict[str, Barrier]:
        if "broken" in needs:
            raise ZeroDivisionError("by zero")
        answers: dict[str, Barrier] = {
            "live": FlushNeeded(OWNER),
            "corrupt": LogCorrupt("corrupt", "/p", "bad"),
            "huge": Unrated(SessionIdentity(created_at=1, cwd="x" * 3_000_000)),
        }
        return {key: answers.get(key) for key in needs}


def test_an_agent_answers_for_each_session_by_itself() -> None:
    """One that breaks its barrier, or has a header that nobody would take, fails alone."""
    keys = ("live", "corrupt", "huge", "absent", "broken")
    asked = {key: (LogQuestion(session_id=key), Need(durable=False)) for key in keys}
    judged = Judge(Broken()).judged(asked)  # type: ignore[arg-type]  # a dict will do
    assert isinstance(judged["live"], FlushNeeded)
    assert judged["absent"] == LogAbsent()
    failures = {key: found.failure.code for key, found in judged.items() if isinstance(found, LogFailed)}
    assert failures == {"corrupt": "LogCorrupt", "huge": "RowInvalid", "broken": "CommandFailed"}
    assert isinstance(told("a", LogQuestion(session_id="broken"), judged["broken"]), CommandFailed)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["", "a b", "../x", "-a", "a" * 254, "ä", "a:b", "a*"])
def test_a_commands_host_is_a_name(host: str) -> None:
    """It stands in keys and in access rules."""
    with pytest.raises(InvalidRequest, match=r"\$\.host"):
        check_command(msgspec.structs.replace(put("m", host=host), command_id="0b7d3c1e-5a52-4c1a-9a37-6f3b6c0f1d2e"))


def test_a_setting_that_is_no_name_stops_a_process_at_its_start() -> None:
    with pytest.raises(SettingsInvalid, match="'a b': no host's name"):
        load_settings({"max_note_bytes": 1, "host": "a b"}, {})


def test_a_command_is_the_same_wherever_its_log_is_said_to_be() -> None:
    """A host that learns to name itself may send its older commands again."""
    assert digest_of(put("m", host=None)) == digest_of(put("m", host="a"))
