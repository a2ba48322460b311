"""A Session log as a conversation, entry by entry (CONTRACT, "Words"; FORMATS sections 4 to 7 and 11)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from msgspec import Struct

from feedback.errors import LogFailure
from feedback.model import SessionIdentity
from persistence.session_log import SessionLogs
from persistence.session_log.damage import Misshapen
from persistence.session_log.opened import OpenLog
from persistence.session_log.rows import Row
from persistence.transcripts.entries import (
    READABLE_TYPES,
    SURFACE_TYPES,
    Entry,
    Message,
    Opaque,
    Replaced,
    entry_of,
)
from persistence.transcripts.surface import Surface

END_SEED = "session/end-seed"
_LAYOUT_TYPES = SURFACE_TYPES | {END_SEED}
_MOST_LAYOUT_BYTES = 64 << 20
_REPLACEMENT_BYTES = 250  # what one is remembered with, its message id aside


class Transcript:
    """One log, open for reading as a conversation.

    Memory: one row, and for what replaces what about 40 bytes a message and 300 a replacement; a log for which
    64 MiB of each do not suffice is RowInvalid.
    """

    def __init__(self, log: OpenLog) -> None:
        self.session_id = log.session_id
        self.version = log.header.version
        self.identity: SessionIdentity = log.header.identity
        self.parent_session = log.header.parent_session
        self.subagent = log.header.subagent
        self.revision = log.revision
        self._log = log
        self._layout: _Layout | None = None

    def entries(self, *, opaque: bool = True) -> Iterator[Entry]:
        """Every row of the log as an entry, in its order; without `Opaque` ones if `opaque` is false.

        What was replaced, and what was inherited, is known from the first entry on: the log is read twice.

        Raises LogCorrupt, LogFormatUnsupported, RowInvalid, LogUnreadable, possibly after the first entries: a
        damaged log gives what is before the damage.
        """
        if self._layout is None:
            self._layout = self._read_layout()
        for entry in self.appearing(opaque=opaque):
            yield self._layout.marked(entry) if isinstance(entry, Message) else entry

    def appearing(self, *, opaque: bool = True) -> Iterator[Entry]:
        """As `entries`, in one reading: nothing says yet what becomes of a message, nor that it was inherited."""
        for row in self._log.rows(None if opaque else READABLE_TYPES):
            entry = self._entry(row)
            if opaque or not isinstance(entry, Opaque):
                yield entry

    def _entry(self, row: Row) -> Entry:
        try:
            return entry_of(row, self.session_id, self.version)
        except Misshapen as damage:
            raise self._failure(damage) from damage

    def _read_layout(self) -> "_Layout":
        layout = _Layout(self._log.header.seed_length)
        rows = self._log.rows(_LAYOUT_TYPES)
        while True:
            try:
                row = next(rows, None)
            except LogFailure:
                return layout  # the entries before the damage come first; then it is met again
            if row is None:
                return layout
            try:
                layout.note(row, self.session_id, self.version)
            except Misshapen as damage:
                raise self._failure(damage) from damage

    def _failure(self, damage: Misshapen) -> LogFailure:
        return damage.failure(self.session_id, self._log.location.path)


@contextmanager
def open_transcript(logs: SessionLogs, session_id: str) -> Iterator[Transcript | None]:
    """The Session's log as a conversation; None when there is no such Session.

    Raises LogCorrupt, LogFormatUnsupported, LogAmbiguous, RowInvalid, LogUnreadable; so does reading it.
    """
    with logs.opened(session_id) as log:
        yield None if log is None else Transcript(log)


class _Appended(Struct, rename="camel"):
    surface_op: Literal["append"]


class _InheritedSeed(Struct):
    inherited: bool = False


class _EndSeed(Struct):
    data: _InheritedSeed


_decode_appended = msgspec.json.Decoder(_Appended).decode
_decode_end_seed = msgspec.json.Decoder(_EndSeed).decode
_UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError)


class _Layout:
    """What the whole log says about each of its messages: what took its place, and whether it was inherited."""

    def __init__(self, seed_length: int | None) -> None:
        self._surface = Surface(_MOST_LAYOUT_BYTES)
        self._replacements: dict[int, Replaced] = {}
        self._replacement_bytes = 0
        self._inherited_to = seed_length or 0
        self._seed_is_marked = seed_length is None

    def note(self, row: Row, session_id: str, version: int) -> None:
        """Takes a row of `_LAYOUT_TYPES` into account. Raises Misshapen when there is no room for it."""
        if row.type == END_SEED:
            if self._seed_is_marked and _ends_inherited_seed(row):
                self._inherited_to = row.seq
            return
        try:
            _decode_appended(row.line)
        except _UNDECODED:
            self._note_replacement(row, session_id, version)
        else:
            self._surface.append(row.seq)

    def _note_replacement(self, row: Row, session_id: str, version: int) -> None:
        try:
            entry = entry_of(row, session_id, version)
        except Misshapen:
            return  # whoever reads as far as here is told
        if not isinstance(entry, Message):
            return
        if entry.replaces is None:
            self._surface.append(row.seq)
        elif self._surface.replace(row.seq, *entry.replaces):
            self._replacements[row.seq] = Replaced(row.seq, entry.message_id, entry.time)
            self._replacement_bytes += _REPLACEMENT_BYTES + sys.getsizeof(entry.message_id)
            if self._replacement_bytes > _MOST_LAYOUT_BYTES:
                raise Misshapen(f"more replacements than there is room for ({_MOST_LAYOUT_BYTES} bytes)")

    def marked(self, message: Message) -> Message:
        """The message with what the log says about it elsewhere."""
        by, inherited = self._surface.replaced_by(message.seq), message.seq < self._inherited_to
        if by is None and not inherited:
            return message
        replaced = None if by is None else self._replacements[by]
        return msgspec.structs.replace(message, replaced=replaced, inherited=inherited)


def _ends_inherited_seed(row: Row) -> bool:
    try:
        return _decode_end_seed(row.line).data.inherited
    except _UNDECODED:
        return False
