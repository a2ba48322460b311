"""Entries of a transcript as the page shows them: Markdown rendered, what is long cut, no more than it shows."""

from typing import Literal

from msgspec import Struct, structs

from gateway.reading.markdown import html_of
from persistence.transcripts import Attachment, Entry, Message, OtherPart, Part, Reasoning, Request, Text, ToolCall
from persistence.transcripts.entries import Replaced, Role, Title

MOST_RENDERED = 32 * 1024
"""Characters of one text that are rendered as Markdown. More is shown as it is: nobody wrote that as prose."""
MOST_FOLDED = 8 * 1024
"""Characters shown at first of what is folded: tool calls, their results, thoughts."""

Kind = Literal["text", "reasoning", "tool-call", "tool-result", "attachment", "other"]


class ShownPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a message. `html` is safe to insert, everything else is text. `cut`: characters there are in all."""

    kind: Kind
    html: str | None = None
    text: str | None = None
    cut: int | None = None
    name: str | None = None
    """Of a tool, an attachment, or an unknown part's type."""
    call_id: str | None = None
    is_error: bool = False
    media_type: str | None = None
    parts: tuple["ShownPart", ...] = ()

    @property
    def characters(self) -> int:
        """How much there is to send."""
        return len(self.html or "") + len(self.text or "") + sum(part.characters for part in self.parts)


class ShownMessage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message (`persistence.transcripts.Message`); a system prompt of older formats is one as well."""

    seq: int
    role: Role
    parts: tuple[ShownPart, ...]
    time: int | None = None
    message_id: str | None = None
    source: str | None = None
    provider: str | None = None
    model: str | None = None
    replacement: bool = False
    replaced: Replaced | None = None
    eligible: bool = False
    inherited: bool = False
    interrupted: bool = False

    @property
    def characters(self) -> int:
        """How much there is to send."""
        return sum(part.characters for part in self.parts)


def shown(entry: Entry, *, whole: bool = False) -> ShownMessage | None:
    """The entry as it is shown, None for what is not. `whole`: nothing is cut, and all of it is plain text."""
    if isinstance(entry, Title):
        return None
    if isinstance(entry, Request):
        if not entry.system:
            return None
        return ShownMessage(seq=entry.seq, time=entry.time, role="system", parts=(_text(entry.system, whole=whole),))
    if not isinstance(entry, Message) or not entry.parts:
        return None
    return ShownMessage(
        seq=entry.seq,
        role=entry.role,
        parts=tuple(_part(part, whole=whole) for part in _joined(entry.parts)),
        time=entry.time,
        message_id=entry.message_id,
        source=entry.source,
        provider=entry.provider,
        model=entry.model,
        replacement=entry.origin == "replacement",
        replaced=entry.replaced,
        eligible=entry.eligible,
        inherited=entry.inherited,
        interrupted=entry.interrupted,
    )


def _joined(parts: tuple[Part, ...]) -> list[Part]:
    """Text parts that follow each other are pieces of one text."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and joined and isinstance(last := joined[-1], Text):
            joined[-1] = structs.replace(last, text=last.text + part.text)
        else:
            joined.append(part)
    return joined


def _part(part: Part, *, whole: bool) -> ShownPart:
    match part:
        case Text(text):
            return _text(text, whole=whole)
        case Reasoning(text):
            return _folded("reasoning", text, whole=whole)
        case ToolCall(call_id, name, arguments):
            return structs.replace(_folded("tool-call", arguments, whole=whole), call_id=call_id, name=name)
        case Attachment(kind, media_type, name, alt):
            return ShownPart(kind="attachment", name=name or alt or kind, media_type=media_type)
        case OtherPart(kind):
            return ShownPart(kind="other", name=kind)
        case _:
            inner = tuple(
                _folded("text", one.text, whole=whole) if isinstance(one, Text) else _part(one, whole=whole)
                for one in _joined(part.parts)
            )
            return ShownPart(kind="tool-result", call_id=part.tool_call_id, is_error=part.is_error, parts=inner)


def _text(text: str, *, whole: bool) -> ShownPart:
    if whole or len(text) > MOST_RENDERED:
        return _cut("text", text, MOST_RENDERED, whole=whole)
    return ShownPart(kind="text", html=html_of(text))


def _folded(kind: Kind, text: str, *, whole: bool) -> ShownPart:
    return _cut(kind, text, MOST_FOLDED, whole=whole)


def _cut(kind: Kind, text: str, most: int, *, whole: bool) -> ShownPart:
    if whole or len(text) <= most:
        return ShownPart(kind=kind, text=text)
    return ShownPart(kind=kind, text=text[:most], cut=len(text))
