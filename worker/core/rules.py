"""The contract's rules for one command, as a pure function (CONTRACT, "Rules of `put`", "Rules of `delete`")."""

from typing import TypeAlias

from msgspec import Struct

from barrier.rules import Barrier, DurableLog
from feedback.commands import Command, DeleteCommand, PutCommand
from feedback.errors import FeedbackError
from feedback.model import Item
from feedback.notes import is_blank, utf8_size
from feedback.results import NoteBlank, NoteTooLarge, Rejection, SessionNotFound, TargetNotFound, VersionConflict


class Write(Struct, frozen=True):
    """Store this item."""

    item: Item


class Remove(Struct, frozen=True):
    """Remove the stored item."""


class Keep(Struct, frozen=True):
    """Success without a change: the item that is stored, or None for a delete of nothing."""

    item: Item | None


class Reject(Struct, frozen=True):
    """Refuse for a business reason."""

    error: Rejection


class Fail(Struct, frozen=True):
    """The barrier could not answer."""

    error: FeedbackError


Verdict: TypeAlias = Write | Remove | Keep | Reject | Fail


def decide(
    command: Command, barrier: Barrier, current: Item | None, *, now_ms: int, version: str, max_note_bytes: int
) -> Verdict:
    """What a command comes to, the rules in the contract's order.

    `current` is the item stored for the Session's *current* identity. `version` is the fresh one that a
    write takes; `now_ms` is in milliseconds since the Unix epoch.
    """
    if (refused := note_rejection(command, max_note_bytes)) is not None:
        return Reject(refused)
    if barrier is None:
        return Reject(SessionNotFound(session_id=command.session_id))
    if isinstance(barrier, FeedbackError):
        return Fail(barrier)
    if isinstance(command, PutCommand):
        return _decide_put(command, barrier, current, now_ms=now_ms, version=version)
    return _decide_delete(command, current)


def note_rejection(command: Command, max_note_bytes: int) -> NoteBlank | NoteTooLarge | None:
    """Rule 2. Blank wins over too large."""
    if not isinstance(command, PutCommand) or command.note is None:
        return None
    if is_blank(command.note):
        return NoteBlank()
    size = utf8_size(command.note)
    return NoteTooLarge(max_bytes=max_note_bytes, actual_bytes=size) if size > max_note_bytes else None


def _decide_delete(command: DeleteCommand, current: Item | None) -> Verdict:
    if current is None:
        return Keep(None)
    if command.if_version != current.version:
        return Reject(VersionConflict(current=current))
    return Remove()


def _decide_put(command: PutCommand, log: DurableLog, current: Item | None, *, now_ms: int, version: str) -> Verdict:
    if not log.eligible(command.message_id):
        return Reject(TargetNotFound(session_id=command.session_id, message_id=command.message_id))
    if command.if_version != (None if current is None else current.version):
        return Reject(VersionConflict(current=current))
    if current is not None and (current.rating, current.note) == (command.rating, command.note):
        return Keep(current)
    return Write(
        Item(
            message_id=command.message_id,
            rating=command.rating,
            note=command.note,
            version=version,
            created_at=now_ms if current is None else current.created_at,
            updated_at=now_ms if current is None else max(now_ms, current.updated_at),
        )
    )
