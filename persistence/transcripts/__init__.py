"""Session logs as conversations: for people to read, and for training."""

from persistence.transcripts.entries import Call, Entry, Message, Opaque, Replaced, Request, Title
from persistence.transcripts.parts import Attachment, OtherPart, Part, Reasoning, Text, ToolCall, ToolResult
from persistence.transcripts.reading import Transcript, open_transcript

__all__ = [
    "Attachment",
    "Call",
    "Entry",
    "Message",
    "Opaque",
    "OtherPart",
    "Part",
    "Reasoning",
    "Replaced",
    "Request",
    "Text",
    "Title",
    "ToolCall",
    "ToolResult",
    "Transcript",
    "open_transcript",
]
