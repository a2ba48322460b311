"""What a message consists of: text, thinking, tool calls, their results, attachments (as placeholders).

The vocabulary of content blocks is open: a block of another type, or not of its type's shape, is kept by its name.
All text is well-formed Unicode.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from persistence.session_log.jsontext import Json, well_formed

_DEEPEST = 4  # a result may hold blocks, which may be results


class Text(Struct, frozen=True, tag="text"):
    """What is said; Markdown, as a rule."""

    text: str


class Reasoning(Struct, frozen=True, tag="reasoning"):
    """What the model thought before it spoke."""

    text: str


class ToolCall(Struct, frozen=True, tag="tool-call"):
    """A tool that the model wants to run. `arguments` is JSON text as the model wrote it, which may be broken."""

    id: str
    name: str
    arguments: str


class ToolResult(Struct, frozen=True, rename="camel", tag="tool-result"):
    """What a tool answered to the call `tool_call_id`."""

    tool_call_id: str
    is_error: bool
    parts: "tuple[Part, ...]"


class Attachment(Struct, frozen=True, rename="camel", tag="attachment"):
    """An image or another file: its bytes lie outside of the log."""

    kind: Literal["image", "file"]
    media_type: str | None = None
    name: str | None = None
    alt: str | None = None


class OtherPart(Struct, frozen=True, tag="other"):
    """A block that this program does not know; `kind` is its type, "" when it has none."""

    kind: str


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Attachment | OtherPart


def parts_of(content: Json, depth: int = 0) -> tuple[Part, ...]:
    """The parts of a message's content; none when that is no list."""
    return tuple(_part(block, depth) for block in content) if isinstance(content, list) else ()


def tool_result(call_id: Json, is_error: Json, content: Json, depth: int = 0) -> ToolResult:
    """A tool's answer from its members, wherever the format version keeps them."""
    return ToolResult(_string(call_id) or "", is_error is True, parts_of(content, depth + 1))


def text_of(parts: tuple[Part, ...]) -> str:
    """The text parts, joined without a gap: they are pieces of one text. A tool's answer counts as text."""
    return "".join(
        part.text if isinstance(part, Text) else text_of(part.parts)
        for part in parts
        if isinstance(part, Text | ToolResult)
    )


def _part(block: Json, depth: int) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str) or depth > _DEEPEST:
        return OtherPart("")
    part: Part | None = None
    match kind:
        case "text" | "reasoning" if (text := _string(block.get("text"))) is not None:
            part = Text(text) if kind == "text" else Reasoning(text)
        case "tool-call" if (name := _string(block.get("name"))) is not None:
            part = ToolCall(_string(block.get("id")) or "", name, _string(block.get("arguments")) or "")
        case "tool-result":
            part = tool_result(block.get("toolCallId"), block.get("isError"), block.get("content"), depth)
        case "image" | "file":
            part = _attachment(kind, block)
    return part or OtherPart(well_formed(kind))


def _attachment(kind: Literal["image", "file"], block: dict[str, Json]) -> Attachment:
    about = block.get("attachment")
    about = about if isinstance(about, dict) else {}
    return Attachment(kind, _string(about.get("mediaType")), _string(about.get("name")), _string(block.get("alt")))


def _string(value: Json) -> str | None:
    return well_formed(value) if isinstance(value, str) else None
