"""What a row says about messages, and which of them may carry feedback (FORMATS section 7).

Only messages are interpreted, and of an assistant message only what decides the
question. Everything else in a log passes through unread.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from persistence.session_log import jsontext
from persistence.session_log.damage import Misshapen
from persistence.session_log.jsontext import Json
from persistence.session_log.rows import UNDECODED, Row

ASSISTANT, USER = "assistant/message", "user/message"
RATABLE, READABLE = frozenset((ASSISTANT,)), frozenset((ASSISTANT, USER))
"""The types of rows that `eligible_id` and `summary` look at."""
_SUMMARY_CHARACTERS = 200
_FIRST_SEQ_SPELLING = 3  # replace spells startSeq/endSeq, and an assistant message cites nothing


class MessageSummary(Struct, frozen=True):
    """One message of a log, for people who choose what to rate. `text` is its beginning, at most 200 characters."""

    message_id: str
    role: Literal["user", "assistant"]
    text: str
    eligible: bool


_Filled = Annotated[str, Meta(min_length=1)]


class _Model(Struct, gc=False):
    kind: Literal["model"]
    provider: _Filled
    model: _Filled


class _Message(Struct, gc=False):
    id: _Filled
    role: Literal["assistant"]
    content: list[msgspec.Raw]
    source: _Model


class _MessageData(Struct, gc=False):
    message: _Message


class _OrdinaryRow(Struct, gc=False, rename="camel"):
    """An appended assistant message with all that it has to have. The decoder refuses more than it should, never less:
    what it refuses is looked at again.
    """

    data: _MessageData
    surface_op: Literal["append"]
    source_event_seqs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_ordinary = msgspec.json.Decoder(_OrdinaryRow).decode


class Placement(NamedTuple):
    """How a message came onto the model's surface: appended, or in place of the span from `start` to `end` (seqs)."""

    replaces: tuple[int, int] | None


APPENDED = Placement(None)


class AssistantMessage(NamedTuple):
    """An assistant message of the format's shape, with the model that wrote it."""

    message_id: str
    content: list[Json]
    placement: Placement
    provider: str
    model: str
    document: dict[str, Json]
    """The whole row."""

    @property
    def eligible(self) -> bool:
        """Whether it may carry feedback (FORMATS section 7)."""
        return self.placement is APPENDED and len(self.content) > 0


def eligible_ids(rows: Iterable[Row], session_id: str, version: int) -> dict[str, int]:
    """The message ids that rows make eligible for feedback, each with the seq of the first row that does.

    Raises Misshapen for an assistant message that is not of the format's shape: nobody
    can say then what it makes eligible.
    """
    answers = [row for row in rows if row.type == ASSISTANT]
    found: dict[str, int] = {}
    try:
        ordinary = [_decode_ordinary(row.line) for row in answers]
    except UNDECODED:
        ordinary = []  # one of them is unusual, or not of the format's shape
    citing = [answer for answer in ordinary if answer.source_event_seqs is not msgspec.UNSET]
    if len(ordinary) < len(answers) or any(_is_unusual(answer, version) for answer in citing):
        for row in answers:
            message_id = eligible_id(row, session_id, version)
            if message_id is not None:
                found.setdefault(message_id, row.seq)
    else:
        for row, answer in zip(answers, ordinary, strict=True):
            message = answer.data.message
            if message.content:
                found.setdefault(message.id, row.seq)
    return found


def eligible_id(row: Row, session_id: str, version: int) -> str | None:
    """The message id that this row makes eligible for feedback, or None. Raises as `eligible_ids`."""
    if row.type != ASSISTANT:
        return None
    try:
        ordinary = _decode_ordinary(row.line)
    except UNDECODED:
        pass
    else:
        if not _is_unusual(ordinary, version):
            return ordinary.data.message.id if ordinary.data.message.content else None
    message = assistant_message(row, session_id, version)
    return message.message_id if message.eligible else None


def _is_unusual(row: _OrdinaryRow, version: int) -> bool:
    return version >= _FIRST_SEQ_SPELLING and row.source_event_seqs is not msgspec.UNSET


def summary(row: Row, session_id: str, version: int) -> MessageSummary | None:
    """The message that this row holds, or None when it holds none that people would rate or read."""
    if row.type == ASSISTANT:
        message = assistant_message(row, session_id, version)
        return MessageSummary(message.message_id, "assistant", _text(message.content), message.eligible)
    if row.type != USER:
        return None
    data = row.document().get("data")
    user = data.get("message", data) if isinstance(data, dict) else None
    if not isinstance(user, dict) or not isinstance(message_id := user.get("id"), str):
        return None
    return MessageSummary(message_id, "user", _text(user.get("content")), eligible=False)


def assistant_message(row: Row, session_id: str, version: int) -> AssistantMessage:
    """The assistant message that a row of this type holds. Raises Misshapen, as `eligible_id`."""
    document = row.document()
    data = document.get("data")
    message = data.get("message") if isinstance(data, dict) else None
    if version == 0 and isinstance(data, dict) and "message" not in data:
        message = _from_legacy(data, legacy_id(session_id, row.seq))
    if not isinstance(message, dict):
        raise _misshapen(row, "has no message")
    message_id, content, source = message.get("id"), message.get("content"), message.get("source")
    if not isinstance(message_id, str) or not message_id:
        raise _misshapen(row, "has no message id")
    if message.get("role") != "assistant" or (written_by := _model(source)) is None:
        raise _misshapen(row, "is not from a model")
    if not isinstance(content, list):
        raise _misshapen(row, "has no content")
    if version >= _FIRST_SEQ_SPELLING and "sourceEventSeqs" in document:
        raise _misshapen(row, "cites other events")
    placed = placement(document.get("surfaceOp"), version)
    if placed is None:
        raise _misshapen(row, "neither appends nor replaces")
    return AssistantMessage(message_id, content, placed, *written_by, document)


def legacy_id(session_id: str, seq: int) -> str:
    """The id that readers give to a message from before messages had one (FORMATS section 7, legacy shapes)."""
    return f"legacy-message:{session_id}:{seq}"


def _from_legacy(data: dict[str, Json], message_id: str) -> dict[str, Json] | None:
    """The message of rows from before messages had an id (FORMATS section 7, legacy shapes)."""
    provenance = data.get("provenance")
    if "content" not in data or not isinstance(provenance, dict):
        return None
    source: dict[str, Json] = {**provenance, "kind": "model"}
    return {"id": message_id, "role": "assistant", "content": data["content"], "source": source}


def _model(source: Json) -> tuple[str, str] | None:
    if not isinstance(source, dict) or source.get("kind") != "model":
        return None
    provider, model = source.get("provider"), source.get("model")
    if isinstance(provider, str) and provider and isinstance(model, str) and model:
        return provider, model
    return None


def placement(operation: Json, version: int) -> Placement | None:
    """What a row's `surfaceOp` says; None when it is neither way of the format version (FORMATS sections 6 and 11)."""
    if operation == "append":
        return APPENDED
    bounds = ("startSeq", "endSeq") if version >= _FIRST_SEQ_SPELLING else ("start", "end")
    if not isinstance(operation, dict) or operation.keys() != {"op", *bounds} or operation["op"] != "replace":
        return None
    start, end = (jsontext.safe_integer(operation[bound]) for bound in bounds)
    return None if start is None or end is None else Placement((start, end))


def _misshapen(row: Row, reason: str) -> Misshapen:
    return Misshapen(f"the assistant/message at seq {row.seq} {reason}")


def _text(content: Json) -> str:
    """The beginning of a message's text blocks."""
    text = ""
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and isinstance(piece := block.get("text"), str) and block.get("type") == "text":
            text += piece[: _SUMMARY_CHARACTERS - len(text)]
            if len(text) >= _SUMMARY_CHARACTERS:
                break
    return text
