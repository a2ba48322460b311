"""What single rows read as: blocks of every kind, shapes of every age, and what is not of its type's shape."""

import json
from pathlib import Path

import pytest

from feedback.errors import LogCorrupt
from persistence.session_log import SessionLogs
from persistence.session_log.damage import Misshapen
from persistence.session_log.jsontext import Json
from persistence.session_log.rows import Row
from persistence.transcripts import (
    Attachment,
    Message,
    Opaque,
    OtherPart,
    Reasoning,
    Text,
    Title,
    ToolCall,
    ToolResult,
    open_transcript,
)
from persistence.transcripts.entries import Entry, entry_of
from persistence.transcripts.parts import parts_of, text_of
from tests.unit.log_examples import SESSION, Compression, turn, write, writer

APPENDED: dict[str, Json] = {"surfaceOp": "append"}


def read(kind: str, data: Json, members: dict[str, Json] | None = None, *, version: int = 0) -> Entry:
    """The entry of a row at seq 7."""
    document = {"type": kind, "seq": 7, "time": 70, "data": data, **(members or {})}
    return entry_of(Row(kind, 7, 1, json.dumps(document).encode()), "sid", version)


def test_every_kind_of_block_is_a_part() -> None:
    """Those that are not of their kind's shape, or of a kind nobody knows, are kept by name; text is well-formed."""
    image: Json = {"mediaType": "image/png", "name": "a.png", "bytes": 3}
    content: list[Json] = [
        {"type": "text", "text": "a\ud800"},
        {"type": "reasoning", "text": "r"},
        {"type": "tool-call", "id": "c", "name": "sh", "arguments": "{"},
        {"type": "image", "attachment": image, "alt": "A"},
        {"type": "file"},
        {"type": "tool-result", "toolCallId": "c", "isError": True, "content": [{"type": "text", "text": "b"}]},
        {"type": "text"},
        {"type": "later"},
        "no block",
    ]
    parts = parts_of(content)
    assert parts == (
        Text("a\ufffd"),
        Reasoning("r"),
        ToolCall("c", "sh", "{"),
        Attachment("image", "image/png", "a.png", "A"),
        Attachment("file"),
        ToolResult("c", is_error=True, parts=(Text("b"),)),
        OtherPart("text"),
        OtherPart("later"),
        OtherPart(""),
    )
    assert text_of(parts) == "a\ufffdb"
    assert parts_of("text") == ()


def test_results_in_results_end_somewhere() -> None:
    """However deep a log nests them."""
    block: Json = {"type": "text", "text": "deep"}
    for _ in range(200):
        block = {"type": "tool-result", "content": [block]}
    assert text_of(parts_of([block])) == ""


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("user/message", {"content": [{"type": "text", "text": "hi"}], "source": {"kind": "user"}}),
        ("steering/message", {"turn": 1, "content": [{"type": "text", "text": "hi"}], "source": {"kind": "user"}}),
        ("steering/message", {"turn": 1, "message": {"content": [{"type": "text", "text": "hi"}]}}),
    ],
)
def test_messages_from_before_they_had_ids_read_like_others(kind: str, data: Json) -> None:
    """Their id is the one that readers of the original give them (FORMATS section 7)."""
    message = read(kind, data, APPENDED)
    assert isinstance(message, Message)
    assert (message.role, message.text, message.message_id) == ("user", "hi", "legacy-message:sid:7")


def test_a_tools_answer_reads_alike_in_every_format() -> None:
    """A block in a message of the user's; a message of the tool's; long ago, neither."""
    inner: Json = [{"type": "text", "text": "ok"}]
    old: Json = {"message": {"id": "t", "content": [{"type": "tool-result", "toolCallId": "c", "content": inner}]}}
    new: Json = {"message": {"id": "t", "role": "tool", "toolCallId": "c", "content": inner}}
    entries = (
        read("tool/result", old, APPENDED, version=3),
        read("tool/result", new, APPENDED, version=4),
        read("tool/result", {"callId": "c", "content": inner}, APPENDED),
    )
    for entry in entries:
        assert isinstance(entry, Message)
        assert (entry.role, entry.text) == ("tool", "ok")
        assert entry.parts == (ToolResult("c", is_error=False, parts=(Text("ok"),)),)


@pytest.mark.parametrize(
    ("kind", "data", "members"),
    [
        ("vendor/thing", {"turn": 1}, {}),
        ("user/message", {"id": "u", "content": "text"}, APPENDED),
        ("user/message", {"id": "u", "content": []}, {}),
        ("user/message", {"id": "u", "content": []}, {"surfaceOp": {"op": "replace", "startSeq": 1, "endSeq": 2}}),
        ("system/message", [], APPENDED),
        ("tool/call", {"callId": "c", "name": "sh", "arguments": {}}, {}),
        ("session/title", {"title": 7}, {}),
        ("request/header", {"header": "no"}, {}),
        ("turn/end", {"turn": "one"}, {}),
    ],
)
def test_what_is_not_known_is_opaque(kind: str, data: Json, members: dict[str, Json]) -> None:
    """An unknown type, another shape, the other format's spelling of a replacement: never an error."""
    entry = read(kind, data, members)
    assert isinstance(entry, Opaque)
    assert (entry.seq, entry.kind, entry.events) == (7, kind, 1)


def test_an_answer_of_another_shape_is_an_error() -> None:
    """As for the barrier: nobody could say whether it may carry feedback."""
    with pytest.raises(Misshapen):
        read("assistant/message", {"message": {"id": "a"}}, APPENDED)
    assert read("session/title", {"title": "T\ud800"}) == Title(seq=7, time=70, title="T\ufffd")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_damaged_log_gives_what_is_before_the_damage(tmp_path: Path, compression: Compression) -> None:
    """Then the failure, with the Session and the path; again the same when it is read again."""
    with writer(tmp_path, compression) as log:
        for _ in range(20):
            log.append([event for number in range(50) for event in turn(number)])
    data = log.path.read_bytes()
    log.path.write_bytes(data[: -len(data) // 8] + b"\n{" + data[-len(data) // 8 :])
    with open_transcript(SessionLogs(tmp_path), SESSION) as transcript:
        assert transcript is not None
        for _ in range(2):
            told: list[int] = []
            with pytest.raises(LogCorrupt, match=str(log.path)):
                told.extend(entry.seq for entry in transcript.entries())
            assert told == list(range(len(told)))
            assert len(told) > 100


def test_no_session_no_transcript(tmp_path: Path) -> None:
    """Nothing is there, or nothing that a catalog would list."""
    write(tmp_path, 1, "none").write_bytes(b"{}")
    for session_id in (SESSION, "other", ""):
        with open_transcript(SessionLogs(tmp_path), session_id) as transcript:
            assert transcript is None
