"""Transcripts of the recorded corpus: what they mark as eligible is what the barrier and the original say."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from feedback.errors import LogFailure
from persistence.session_log import SessionLogs
from persistence.session_log.jsontext import well_formed
from persistence.transcripts import Call, Entry, Message, Opaque, Reasoning, Request, Text, Title, open_transcript
from persistence.transcripts.parts import ToolCall, ToolResult
from tests.conformance.log_corpus import FIXTURES, Question, answer, needs_fixtures, place, questions

pytestmark = needs_fixtures


def entries(root: str, session_id: str | None = None) -> list[Entry]:
    """The entries of a Session of the corpus (of the only one in its root)."""
    logs = SessionLogs(FIXTURES / root)
    with open_transcript(logs, session_id or logs.sessions(limit=1)[0].session_id) as transcript:
        assert transcript is not None
        return list(transcript.entries())


def told(root: str, session_id: str | None = None) -> list[Message]:
    """Its messages."""
    return [entry for entry in entries(root, session_id) if isinstance(entry, Message)]


def _outcome(root: Path, session_id: str) -> tuple[list[str] | str, int | None]:
    try:
        with open_transcript(SessionLogs(root), session_id) as transcript:
            if transcript is None:
                return "not found", None
            found = list(transcript.entries())
    except LogFailure as failure:
        return failure.code, None
    msgspec.json.encode(found)
    eligible = {entry.message_id or "" for entry in found if isinstance(entry, Message) and entry.eligible}
    return sorted(eligible), sum(entry.events if isinstance(entry, Opaque) else 1 for entry in found)


def test_eligible_messages_events_and_failures_are_the_barriers() -> None:
    """For every recorded question, of every format and damage; each entry can be sent to others as JSON."""
    asked = [question for question in questions() if not question.root.startswith("damaged/layout")]
    assert len(asked) > 500
    for question in asked:
        ours = answer(FIXTURES / question.root, question.session_id)
        expected = ours.outcome
        if isinstance(expected, list):
            expected = sorted({well_formed(message_id) for message_id in expected})
        assert _outcome(FIXTURES / question.root, question.session_id) == (expected, ours.events), question


@pytest.mark.parametrize("question", [q for q in questions() if q.root.startswith("damaged/layout")], ids=str)
def test_a_layout_gives_the_barriers_answer(question: Question, tmp_path: Path) -> None:
    """Wherever a log lies, a transcript finds it, or fails, as the barrier does."""
    root = place(question.root, tmp_path)
    assert _outcome(root, question.session_id)[0] == answer(root, question.session_id).outcome


@pytest.mark.parametrize("container", ["raw", "zstd"])
def test_a_replaced_message_says_by_what_and_when(container: Literal["raw", "zstd"]) -> None:
    """A compaction of two messages, an answer rewritten twice: the originals stay eligible, the copies are not."""
    messages = {message.seq: message for message in told(f"v0/{container}-replacements")}
    summary, rewritten, again = messages[13], messages[15], messages[16]
    by = {message.seq: message.replaced.by_seq for message in messages.values() if message.replaced}
    assert by == {1: 13, 3: 13, 9: 15, 15: 16}
    assert messages[9].replaced is not None
    assert (messages[9].replaced.by_message_id, messages[9].replaced.at) == ("a-repl", rewritten.time)
    assert [(m.origin, m.replaces, m.eligible) for m in (summary, rewritten, again)] == [
        ("replacement", (1, 3), False),
        ("replacement", (9, 9), False),
        ("replacement", (15, 15), False),
    ]
    assert messages[9].eligible
    assert again.replaced is None


@pytest.mark.parametrize("root", ["v1-zstd-compacted", "v2-zstd-compacted", "v3-zstd-compacted"])
def test_both_spellings_of_a_replacement_are_read(root: str) -> None:
    """start/end up to format 2, startSeq/endSeq from 3 on, with the seqs of each format."""
    compaction = [message for message in told(f"vn/{root}") if message.origin == "replacement" and message.source]
    (replacement,) = [message for message in compaction if message.message_id == "u-compact"]
    replaced = [message for message in told(f"vn/{root}") if message.replaced]
    assert {message.replaced.by_seq for message in replaced if message.replaced} == {replacement.seq}
    assert replacement.replaces == (replaced[0].seq, replaced[-1].seq)


@pytest.mark.parametrize("root", ["v0/raw-single-turn", "vn/v1-raw-rich", "vn/v2-zstd-rich", "vn/v4-raw-rich"])
def test_a_turn_reads_alike_in_every_format(root: str) -> None:
    """Prompt, thinking, call and result with name and arguments, answer, model: wherever the format keeps them."""
    if root == "v0/raw-single-turn":
        question, answered = told(root)
        assert (question.role, question.text, question.eligible) == ("user", "question 1", False)
        assert (answered.text, answered.provider, answered.model, answered.time) == (
            "answer 1",
            "prov",
            "mod-1",
            1_700_000_000_004,
        )
        return
    found = entries(root)
    messages = {message.message_id: message for message in found if isinstance(message, Message)}
    asked, result, final = messages["a1-call"], messages["tr-1"], messages["a1-final"]
    assert ToolCall("call-1", "bash", '{"cmd":"ls"}') in asked.parts
    assert (result.role, result.text) == ("tool", "a\nb")
    assert result.parts == (ToolResult("call-1", is_error=False, parts=(Text("a\nb"),)),)
    assert final.text == "two files 🚀"
    assert any(isinstance(part, Reasoning) for part in final.parts)
    assert [entry.name for entry in found if isinstance(entry, Call)] == ["bash"]
    assert [entry.title for entry in found if isinstance(entry, Title)] == ["T"]
    (request,) = [entry for entry in found if isinstance(entry, Request)]
    assert (request.provider, request.model) == ("prov", "mod-1")
    system = [message.text for message in messages.values() if message.role == "system" and message.text]
    assert [*system, request.system or system[0]][:1] == ["You are a test."]
    assert messages["a2-interrupted"].interrupted


def test_packed_rows_are_one_entry_for_all_their_events() -> None:
    """Nothing of a stream is lost, nothing is read into it: seqs go on behind the packed row."""
    packed = [entry for entry in entries("v0/raw-packed-chunks") if isinstance(entry, Opaque) and entry.events > 1]
    assert {entry.kind for entry in packed} == {"text-chunks", "reasoning-chunks", "tool-call-chunks"}
    assert all(entry.time is not None for entry in packed)


@pytest.mark.parametrize(
    "root", ["v0/raw-fork", "v0/zstd-fork", "vn/v2-zstd-fork-vn-child", "vn/v3-zstd-fork-vn-child"]
)
def test_inherited_messages_are_those_of_the_seed(root: str) -> None:
    """By the header's seedLength up to format 1, by the marker behind the seed from format 2 on: a prefix."""
    logs = SessionLogs(FIXTURES / root)
    forks = 0
    for log in logs.sessions(limit=10):
        with open_transcript(logs, log.session_id) as transcript:
            assert transcript is not None
            inherited = [entry.inherited for entry in transcript.entries() if isinstance(entry, Message)]
        assert inherited == sorted(inherited, reverse=True)
        assert any(inherited) == (transcript.parent_session is not None)
        forks += any(inherited)
    assert forks > 0


def test_a_subagents_session_is_known_as_one() -> None:
    """By its header; its conversation reads like any other."""
    logs = SessionLogs(FIXTURES / "v0/raw-subagent")
    with open_transcript(logs, logs.sessions(limit=1)[0].session_id) as transcript:
        assert transcript is not None
        assert transcript.subagent
        assert any(isinstance(entry, Message) and entry.eligible for entry in transcript.entries())
