"""What a model had before it when it answered: its surface, folded from a transcript. Pure."""

from msgspec import Struct

from persistence.transcripts import (
    Attachment,
    Entry,
    Message,
    Part,
    Reasoning,
    Request,
    ToolCall,
    ToolResult,
)
from persistence.transcripts.entries import Role
from persistence.transcripts.surface import Surface


class Call(Struct, frozen=True):
    """A tool call of an answer; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Turn(Struct, frozen=True, kw_only=True, rename="camel"):
    """One message as a model sees or writes it. `attachments` counts images and files, whose bytes no log holds."""

    role: Role
    text: str
    reasoning: str | None
    tool_calls: tuple[Call, ...]
    tool_call_id: str | None
    is_error: bool | None
    attachments: int


class Conversation:
    """The messages that the model sees, as the log builds them: system prompt, messages, less what was replaced."""

    def __init__(self) -> None:
        self._surface = Surface()
        self._turns: dict[int, Turn] = {}
        self._system: str | None = None

    def prompt(self) -> tuple[Turn, ...]:
        """What the next answer is an answer to."""
        system = (_system_turn(self._system),) if self._system else ()
        return system + tuple(turn for seq in self._surface if (turn := self._turns.get(seq)) is not None)

    def add(self, entry: Entry) -> None:
        """Takes one more entry into account."""
        if isinstance(entry, Request):
            self._system = entry.system  # up to format 2; from then on it is a message
        elif isinstance(entry, Message):
            self._add_message(entry)

    def _add_message(self, message: Message) -> None:
        if message.replaces is None:
            self._surface.append(message.seq)
        else:
            replaced = self._surface.replace(message.seq, *message.replaces)
            if not replaced:
                return  # it stands in place of nothing: no model saw it
            for seq in replaced:
                self._turns.pop(seq, None)
        if message.parts:
            self._turns[message.seq] = turn_of(message)


def turn_of(message: Message) -> Turn:
    """A message as a record has it."""
    parts = message.parts
    result = next((part for part in parts if isinstance(part, ToolResult)), None)
    reasoning = [part.text for part in parts if isinstance(part, Reasoning)]
    return Turn(
        role=message.role,
        text=message.text,
        reasoning="".join(reasoning) if reasoning else None,
        tool_calls=tuple(Call(part.id, part.name, part.arguments) for part in parts if isinstance(part, ToolCall)),
        tool_call_id=result.tool_call_id if result else None,
        is_error=result.is_error if result else None,
        attachments=_attachments(parts),
    )


def _system_turn(text: str) -> Turn:
    return Turn(
        role="system", text=text, reasoning=None, tool_calls=(), tool_call_id=None, is_error=None, attachments=0
    )


def _attachments(parts: tuple[Part, ...]) -> int:
    inner = sum(_attachments(part.parts) for part in parts if isinstance(part, ToolResult))
    return inner + sum(isinstance(part, Attachment) for part in parts)
