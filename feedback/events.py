"""What happened, in the past tense: one event per command outcome (CONTRACT, "Events").

An event's place in its partition is the dense `sequence` of the sidecar store; it stands in
`event_id` ("<generation>-<partition>-<sequence>") and is the entry's id in the event stream.
"""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from feedback.decoding import decoded
from feedback.model import Item, SessionIdentity
from feedback.results import Absent, Ok, Rejected, Rejection, Result, at_revision


class _EventBase(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """`revision` is the Session's after the command; `occurred_at` in milliseconds since the Unix epoch.

    An event of another schema is not read here: it means something else.
    """

    schema: Literal[1] = 1
    event_id: str
    command_id: str
    session_id: str
    session: SessionIdentity | None = None
    revision: int
    message_id: str
    actor: str | None = None
    occurred_at: int
    partition: int
    epoch: int
    traceparent: str | None = None
    """The command's: whoever acts on the event may continue its trace."""


class FeedbackPut(_EventBase, frozen=True, kw_only=True, tag="feedback.put"):
    """An item was written."""

    item: Item


class FeedbackDeleted(_EventBase, frozen=True, kw_only=True, tag="feedback.deleted"):
    """An item was removed."""


class FeedbackUnchanged(_EventBase, frozen=True, kw_only=True, tag="feedback.unchanged"):
    """A put of what is stored already (`item` is that), or a delete of what is not there (no `item`)."""

    item: Item | None = None


class FeedbackRejected(_EventBase, frozen=True, kw_only=True, tag="feedback.rejected"):
    """The command was refused for a business reason."""

    error: Rejection


Event: TypeAlias = FeedbackPut | FeedbackDeleted | FeedbackUnchanged | FeedbackRejected

_decoder = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """msgpack; ids and notes are well-formed Unicode by the boundary check."""
    return msgspec.msgpack.encode(event)


def decode_event(data: bytes) -> Event:
    """Raises `msgspec.ValidationError` or `msgspec.DecodeError` for anything that is not an event."""
    return decoded(_decoder, data)


def result_of(event: Event) -> Result:
    """The command's recorded answer. It follows from the event alone, so only the event is kept."""
    result: Result
    match event:
        case FeedbackRejected(error=error):
            result = Rejected(error=error)
        case FeedbackPut(item=item):
            result = Ok(value=item)
        case FeedbackUnchanged(item=Item() as item):
            result = Ok(value=item)
        case FeedbackUnchanged() | FeedbackDeleted():
            result = Ok(value=Absent())
    return at_revision(result, event.revision)
