"""Entries of a transcript as the page shows them: Markdown rendered, what is long cut, no more than it shows.

What a message costs is bounded, in work and in what is sent, whatever it holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Literal

from msgspec import Struct, structs

from gateway.reading.markdown import Effort, TooMuchMarkdown, html_of
from persistence.transcripts import Attachment, Entry, Message, OtherPart, Part, Reasoning, Request, Text, ToolCall
from persistence.transcripts.entries import Replaced, Role, Title

MOST_RENDERED = 32 * 1024
"""Characters of one text that are rendered as Markdown. More is shown as it is: nobody wrote that as prose."""
MOST_FOLDED = 8 * 1024
"""Characters shown at first of what is folded: tool calls, their results, thoughts."""
MOST_SHOWN = 512 * 1024
"""Characters shown at first of one message; of what comes behind them, none are."""
MOST_PARTS = 2000
"""Parts of one message that are shown, those of tool results among them; of the others, how many there are."""
MOST_NAME = 200
"""Characters of what a message names: tools, calls, files, models."""

Kind = Literal["text", "reasoning", "tool-call", "tool-result", "attachment", "other", "more"]


class ShownPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a message. `html` is safe to insert, everything else is text. `cut`: characters there are in all.

    `plain`: text that would be rendered, but is too long or too intricate.
    """

    kind: Kind
    html: str | None = None
    text: str | None = None
    plain: bool = False
    cut: int | None = None
    name: str | None = None
    """Of a tool, an attachment, or an unknown part's type; of "more", how many parts are left out."""
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
    """The entry as it is shown, None for what is not. `whole`: no text is cut, and all of it is plain text."""
    if isinstance(entry, Title):
        return None
    showing = _Showing(whole=whole)
    if isinstance(entry, Request):
        if not entry.system:
            return None
        return ShownMessage(seq=entry.seq, time=entry.time, role="system", parts=(showing.prose(entry.system),))
    if not isinstance(entry, Message) or not entry.parts:
        return None
    return ShownMessage(
        seq=entry.seq,
        role=entry.role,
        parts=showing.parts(entry.parts),
        time=entry.time,
        message_id=entry.message_id,
        source=_named(entry.source),
        provider=_named(entry.provider),
        model=_named(entry.model),
        replacement=entry.origin == "replacement",
        replaced=entry.replaced,
        eligible=entry.eligible,
        inherited=entry.inherited,
        interrupted=entry.interrupted,
    )


class _Showing:
    """Shows the parts of one message, as long as there is something left to spend on it."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._effort = Effort()
        self._characters = MOST_SHOWN
        self._parts = MOST_PARTS

    def parts(self, parts: Sequence[Part], *, folded: bool = False) -> tuple[ShownPart, ...]:
        """`folded`: they are within something that is folded, a tool's answer."""
        joined, found = list(_joined(parts)), list[ShownPart]()
        for part in joined:
            if not self._parts:
                found.append(ShownPart(kind="more", name=str(len(joined) - len(found))))
                break
            self._parts -= 1
            found.append(self._part(part, folded=folded))
        return tuple(found)

    def prose(self, text: str) -> ShownPart:
        """Rendered, if that costs neither too much work nor too much room."""
        if self._whole:
            return ShownPart(kind="text", text=text)
        if len(text) <= MOST_RENDERED and self._characters > 0:
            with suppress(TooMuchMarkdown):
                html = html_of(text, self._effort)
                self._characters -= len(html)
                return ShownPart(kind="text", html=html)
        return structs.replace(self._cut("text", text, MOST_RENDERED), plain=True)

    def _part(self, part: Part, *, folded: bool) -> ShownPart:
        match part:
            case Text(text):
                return self._cut("text", text, MOST_FOLDED) if folded else self.prose(text)
            case Reasoning(text):
                return self._cut("reasoning", text, MOST_FOLDED)
            case ToolCall(call_id, name, arguments):
                found = self._cut("tool-call", arguments, MOST_FOLDED)
                return structs.replace(found, call_id=_named(call_id), name=_named(name))
            case Attachment(kind, media_type, name, alt):
                return ShownPart(kind="attachment", name=_named(name or alt or kind), media_type=_named(media_type))
            case OtherPart(kind):
                return ShownPart(kind="other", name=_named(kind))
            case _:
                return ShownPart(
                    kind="tool-result",
                    call_id=_named(part.tool_call_id),
                    is_error=part.is_error,
                    parts=self.parts(part.parts, folded=True),
                )

    def _cut(self, kind: Kind, text: str, most: int) -> ShownPart:
        if self._whole:
            return ShownPart(kind=kind, text=text)
        begun = text[: max(0, min(most, self._characters))]
        self._characters -= len(begun)
        return ShownPart(kind=kind, text=begun, cut=len(text) if len(begun) < len(text) else None)


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Text parts that follow each other are pieces of one text."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, Text)):
        if is_text:
            yield Text("".join(part.text for part in group if isinstance(part, Text)))
        else:
            yield from group


def _named(name: str | None) -> str | None:
    return name if name is None or len(name) <= MOST_NAME else f"{name[:MOST_NAME]}…"
