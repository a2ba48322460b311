"""What is remembered of a log already read, so that the next reading costs what was appended.

Never trusted over the file: everything here came from bytes that were read and checked, and
is used only while the file is the same one and still begins with the same bytes.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import NamedTuple

from msgspec import Struct, field

from feedback.model import SessionIdentity
from persistence.session_log.catalog import Location
from persistence.session_log.damage import Misshapen
from persistence.session_log.reader import Progress
from persistence.session_log.source import Revision

_FINGERPRINT_BYTES = 4096
_ENTRY_BYTES = 1700
_ID_BYTES = 100  # what a dictionary holds an id with, its text aside
_RACY_NS = 50_000_000


class MessageIds:
    """Eligible message ids, each with the seq that first made it so, up to a number of bytes."""

    __slots__ = ("_most_bytes", "bytes", "seqs")

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


class LogView(Struct, frozen=True, kw_only=True, eq=False):
    """What one reading of a log found. Immutable; later readings make new views.

    `events` counts the stored events, `torn` says that a torn tail was left out, `revision`
    is the file's as it was read.
    """

    identity: SessionIdentity
    revision: Revision
    events: int
    torn: bool
    _appended: MessageIds
    """Shared with later, longer views: the seq decides what belongs to this one."""
    _recovered: MessageIds

    def eligible(self, message_id: str) -> bool:
        """Whether the log holds a non-empty assistant message of append origin with this id (FORMATS section 7)."""
        return self._appended.seqs.get(message_id, self.events) < self.events or message_id in self._recovered.seqs

    @property
    def recovered(self) -> MessageIds:
        """Those ids that stand only in a torn last frame."""
        return self._recovered

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


class LogState(Struct, eq=False):
    """How far one file was read, and what was found: grows with the file, is thrown away when the file is another."""

    location: Location
    version: int
    identity: SessionIdentity
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


class Entry(Struct, eq=False):
    """One Session's place in the index, which keeps the `weight`. `lock` lets one thread at a time read its log."""

    lock: Lock = field(default_factory=Lock)
    state: LogState | None = None
    view: LogView | None = None
    weight: int = 0

    def clear(self) -> None:
        """Forgets everything read."""
        self.state = self.view = None

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        if self.state is None or self.view is None:
            return _ENTRY_BYTES
        return _ENTRY_BYTES + self.state.appended.bytes + self.view.recovered.bytes


def settled(revision: Revision) -> bool:
    """Whether the file was left alone for long enough that a later change must show in its times.

    Until then a rewrite to the same size may fall into the same tick of the file system's clock.
    """
    return time.time_ns() - revision.mtime_ns > _RACY_NS


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
