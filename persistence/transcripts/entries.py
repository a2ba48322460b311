"""From rows to what people read: one typed entry per row, in the order of the log.

Only assistant messages must be of the format's shape, as for the barrier (FORMATS section 7): about any other
one nobody could say whether it may carry feedback. Rows of other types, or not of their type's shape, are `Opaque`.
"""

from typing import Literal, TypeAlias, TypedDict

import msgspec
from msgspec import Struct

from persistence.session_log import messages
from persistence.session_log.jsontext import Json, safe_integer, well_formed
from persistence.session_log.messages import APPENDED, ASSISTANT, USER, AssistantMessage, Placement
from persistence.session_log.rows import Row
from persistence.transcripts.parts import Part, parts_of, text_of, tool_result

Role = Literal["user", "assistant", "tool", "system", "developer"]

SYSTEM, DEVELOPER, TOOL_RESULT, STEERING = "system/message", "developer/message", "tool/result", "steering/message"
TOOL_CALL, TITLE, REQUEST = "tool/call", "session/title", "request/header"
_ROLES: dict[str, Role] = {
    ASSISTANT: "assistant",
    USER: "user",
    STEERING: "user",
    TOOL_RESULT: "tool",
    SYSTEM: "system",
    DEVELOPER: "developer",
}
SURFACE_TYPES = frozenset(_ROLES)
"""Rows that put a message on the model's surface."""
READABLE_TYPES = SURFACE_TYPES | {TOOL_CALL, TITLE, REQUEST}
"""Rows that have an entry of their own kind; all others are `Opaque`."""


class Replaced(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which message took another one's place on the model's surface; `at` in milliseconds since the Unix epoch."""

    by_seq: int
    by_message_id: str | None = None
    at: int | None = None


class _Entry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    """`seq` is the row's place in the log, `time` its milliseconds since the Unix epoch (None: it says none)."""

    seq: int
    time: int | None = None
    turn: int | None = None
    step: int | None = None


class Message(_Entry, frozen=True, kw_only=True, tag="message"):
    """One message. Ids and text are well-formed Unicode: what was not stands as U+FFFD.

    `text` is the text among `parts`. `source` says what kind of author a message has ("user", "model", "tool",
    "plugin" and others); `provider` and `model` stand on an assistant's. `replaces` is the span of seqs that a
    replacement took off the surface, `replaced` what took this message's own place since. `eligible`: whether
    feedback may be bound to it. `inherited`: copied from the Session that this one was forked from.
    """

    role: Role
    message_id: str | None
    text: str
    parts: tuple[Part, ...]
    source: str | None = None
    provider: str | None = None
    model: str | None = None
    origin: Literal["append", "replacement"] = "append"
    replaces: tuple[int, int] | None = None
    replaced: Replaced | None = None
    eligible: bool = False
    inherited: bool = False
    interrupted: bool = False


class Call(_Entry, frozen=True, kw_only=True, tag="call"):
    """A tool begins to run; the assistant's message before it has the same call among its parts."""

    call_id: str
    name: str
    arguments: str


class Title(_Entry, frozen=True, kw_only=True, tag="title"):
    """The Session gets this title; the last one counts."""

    title: str


class Request(_Entry, frozen=True, kw_only=True, tag="request"):
    """From here on the model is called like this. `system` is the system prompt, up to format 2."""

    provider: str | None = None
    model: str | None = None
    system: str | None = None


class Opaque(_Entry, frozen=True, kw_only=True, tag="opaque"):
    """A row that nothing is known about but its type; a packed row stands for several `events`."""

    kind: str
    events: int = 1


Entry: TypeAlias = Message | Call | Title | Request | Opaque


class _Where(TypedDict):
    """The members that every entry has."""

    seq: int
    time: int | None
    turn: int | None
    step: int | None


def entry_of(row: Row, session_id: str, version: int) -> Entry:
    """The entry that a row is. Raises Misshapen for an assistant message that is not of the format's shape."""
    if row.type == ASSISTANT:
        return _from_assistant(row, messages.assistant_message(row, session_id, version))
    if row.type not in READABLE_TYPES:
        return _opaque(row)
    document = row.document()
    data = document.get("data")
    entry: Entry | None = None
    if isinstance(data, dict):
        where = _where(row, document, data)
        if row.type in SURFACE_TYPES:
            entry = _message(
                row, document, data, where, legacy_id=_legacy_id(row, session_id, version), version=version
            )
        elif row.type == TOOL_CALL:
            entry = _call(data, where)
        elif row.type == TITLE:
            title = data.get("title")
            entry = Title(**where, title=well_formed(title)) if isinstance(title, str) else None
        else:
            entry = _request(data.get("header"), where)
    return entry or _opaque(row)


def _where(row: Row, document: dict[str, Json], data: dict[str, Json]) -> _Where:
    turn, step = safe_integer(data.get("turn")), safe_integer(data.get("step"))
    return {"seq": row.seq, "time": safe_integer(document.get("time")), "turn": turn, "step": step}


def _from_assistant(row: Row, message: AssistantMessage) -> Message:
    data = message.document["data"]
    assert isinstance(data, dict)
    parts = parts_of(message.content)
    return Message(
        **_where(row, message.document, data),
        **_placed(message.placement),
        role="assistant",
        message_id=well_formed(message.message_id),
        text=text_of(parts),
        parts=parts,
        source="model",
        provider=well_formed(message.provider),
        model=well_formed(message.model),
        eligible=message.eligible,
        interrupted=data.get("interrupted") is True,
    )


def _message(
    row: Row, document: dict[str, Json], data: dict[str, Json], where: _Where, *, legacy_id: str | None, version: int
) -> Message | None:
    """Any other message; None when it is not of its type's shape."""
    body = data.get("message", data)
    placement = messages.placement(document.get("surfaceOp"), version)
    if not isinstance(body, dict) or placement is None or not isinstance(content := body.get("content"), list):
        return None
    message_id, source = body.get("id", legacy_id), body.get("source")
    kind = source.get("kind") if isinstance(source, dict) else None
    if row.type == TOOL_RESULT and not _holds_results(content):
        call_id = body.get("toolCallId", body.get("callId"))
        parts: tuple[Part, ...] = (tool_result(call_id, body.get("isError"), content),)
    else:
        parts = parts_of(content)
    return Message(
        **where,
        **_placed(placement),
        role=_ROLES[row.type],
        message_id=well_formed(message_id) if isinstance(message_id, str) else None,
        text=text_of(parts),
        parts=parts,
        source=well_formed(kind) if isinstance(kind, str) else None,
    )


def _holds_results(content: list[Json]) -> bool:
    """Up to format 3 a tool's message holds a block with the result; later, and long ago, it is the result."""
    return any(isinstance(block, dict) and block.get("type") == "tool-result" for block in content)


def _legacy_id(row: Row, session_id: str, version: int) -> str | None:
    return well_formed(messages.legacy_id(session_id, row.seq)) if version == 0 else None


class _Placed(TypedDict):
    origin: Literal["append", "replacement"]
    replaces: tuple[int, int] | None


def _placed(placement: Placement) -> _Placed:
    return {"origin": "append" if placement is APPENDED else "replacement", "replaces": placement.replaces}


def _call(data: dict[str, Json], where: _Where) -> Call | None:
    call_id, name, arguments = data.get("callId"), data.get("name"), data.get("arguments")
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, str):
        return None
    return Call(**where, call_id=well_formed(call_id), name=well_formed(name), arguments=well_formed(arguments))


def _request(header: Json, where: _Where) -> Request | None:
    if not isinstance(header, dict):
        return None
    config = header.get("config")
    config = config if isinstance(config, dict) else {}
    provider, model, system = (
        well_formed(text) if isinstance(text, str) else None
        for text in (config.get("provider"), config.get("model"), header.get("system"))
    )
    return Request(**where, provider=provider, model=model, system=system)


class _Brackets(Struct):
    turn: int | None = None
    step: int | None = None


class _Envelope(Struct):
    time: int | None = None
    time0: int | None = None
    data: _Brackets | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def _opaque(row: Row) -> Opaque:
    """Of what is not known, only the envelope is looked at, as far as it is one."""
    try:
        envelope = _decode_envelope(row.line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        envelope = _Envelope()
    brackets = envelope.data or _Brackets()
    time = envelope.time if envelope.time is not None else envelope.time0
    kind = well_formed(row.type)
    return Opaque(seq=row.seq, time=time, turn=brackets.turn, step=brackets.step, kind=kind, events=row.width)
