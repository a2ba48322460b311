"""What is remembered of logs already read, so that the next reading costs what was appended.

Never trusted over the file: everything here came from bytes that were read and checked, and
is used only while the file is the same one and still begins with the same bytes.
"""

import hashlib
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from feedback.model import SessionIdentity
from persistence.session_log.catalog import Location
from persistence.session_log.damage import Misshapen
from persistence.session_log.header import Header
from persistence.session_log.reader import Progress
from persistence.session_log.source import Revision

_FINGERPRINT_BYTES = 4096
_ENTRY_BYTES = 2048
_ID_BYTES = 100  # what a dictionary holds an id with, its text aside
_RACY_NS = 50_000_000


class MessageIds:
    """Eligible message ids, each with the seq that first made it so, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.seqs: dict[str, int] = {}
        self.bytes = 0
        self._most_bytes = most_bytes

    def add(self, ids: Mapping[str, int]) -> None:
        """Notes eligible messages. Raises Misshapen when there is no room for them."""
        if not self.seqs.keys().isdisjoint(ids):
            ids = {message_id: seq for message_id, seq in ids.items() if message_id not in self.seqs}
        self.seqs.update(ids)
        self.bytes += sum(map(str.__sizeof__, ids)) + len(ids) * _ID_BYTES
        if self.bytes > self._most_bytes:
            raise Misshapen(f"more message ids than the index has room for ({self._most_bytes} bytes)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogView:
    """What one reading of a log found. Immutable; later readings make new views.

    `events` counts the stored events, `torn` says that a torn tail was left out, `revision`
    is the file's as it was read.
    """

    identity: SessionIdentity
    revision: Revision
    events: int
    torn: bool
    _appended: MessageIds = field(repr=False)
    """Shared with later, longer views: the seq decides what belongs to this one."""
    _recovered: MessageIds = field(repr=False)

    def eligible(self, message_id: str) -> bool:
        """Whether the log holds a non-empty assistant message of append origin with this id (FORMATS section 7)."""
        return self._appended.seqs.get(message_id, self.events) < self.events or message_id in self._recovered.seqs

    @property
    def message_ids(self) -> Iterable[str]:
        """The eligible message ids, in the order of their first appearance."""
        ids = {message_id: seq for message_id, seq in list(self._appended.seqs.items()) if seq < self.events}
        return list(ids | self._recovered.seqs)


class Fingerprint(NamedTuple):
    """Digests of a log's first bytes and of the last ones before a clean end."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, descriptor: int, offset: int) -> "Fingerprint":
        """The fingerprint of the first `offset` bytes of an open file."""
        length = min(_FINGERPRINT_BYTES, offset)
        return cls(*(_digest(os.pread(descriptor, length, at)) for at in (0, offset - length)))


@dataclass(slots=True)
class LogState:
    """How far one file was read, and what was found: grows with the file, is thrown away when the file is another."""

    location: Location
    header: Header
    progress: Progress
    revision: Revision
    appended: MessageIds
    fingerprint: Fingerprint | None = None
    durable: Revision | None = None
    names_durable: bool = False

    def continues(self, descriptor: int, location: Location, revision: Revision) -> bool:
        """Whether the open file is the one read before and everything before the clean end still stands there."""
        if not location.same_place(self.location) or not self.revision.same_file(revision):
            return False
        if revision == self.revision and settled(revision):
            return True
        offset = self.progress.offset
        return revision.size >= offset and Fingerprint.of(descriptor, offset) == self.fingerprint


@dataclass(slots=True)
class Entry:
    """One Session's place in the index. `lock` lets one thread at a time read its log."""

    lock: Lock = field(default_factory=Lock)
    state: LogState | None = None
    view: LogView | None = None

    def clear(self) -> None:
        """Forgets everything read."""
        self.state = self.view = None


def settled(revision: Revision) -> bool:
    """Whether the file was left alone for long enough that a later change must show in its times.

    Until then a rewrite to the same size may fall into the same tick of the file system's clock.
    """
    return time.time_ns() - revision.mtime_ns > _RACY_NS


class LogIndex:
    """Entries by Session id, least recently used first, bounded by what they take. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[str, tuple[Entry, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def peek(self, session_id: str) -> Entry | None:
        """The Session's entry, if there is one, without waiting for who reads it."""
        with self._lock:
            found = self._entries.get(session_id)
            if found is None:
                return None
            self._entries.move_to_end(session_id)
            return found[0]

    @contextmanager
    def hold(self, session_id: str) -> Iterator[Entry]:
        """The Session's entry, to this thread alone. Kept afterwards if it then holds something."""
        with self._lock:
            entry = self._entries.setdefault(session_id, (Entry(), 0))[0]
        with entry.lock:
            try:
                yield entry
            finally:
                self._store(session_id, entry)

    def _store(self, session_id: str, entry: Entry) -> None:
        taken = 0 if entry.state is None else _ENTRY_BYTES + sys.getsizeof(session_id) + entry.state.appended.bytes
        with self._lock:
            _, before = self._entries.pop(session_id, (entry, 0))
            self._bytes -= before
            if entry.state is not None:
                self._entries[session_id] = (entry, taken)
                self._bytes += taken
            while self._bytes > self._most_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
