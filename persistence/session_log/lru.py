"""The index of logs that were read: by Session id, least recently used first, bounded by what it takes."""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from persistence.session_log.compact import compacted, restored
from persistence.session_log.index import Entry

MOST_READY = 1024
"""So many entries lie ready for use; those that were used before them are kept as bytes, if they are small."""
_PLACE_BYTES = 200  # in an ordered dictionary, around some bytes, and between them in the heap


class LogIndex:
    """What is remembered of the logs under a root. Thread-safe."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        self._root = str(root)
        self._most_bytes = most_bytes
        self._ready: OrderedDict[str, Entry] = OrderedDict()
        self._resting: OrderedDict[str, Entry | bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def peek(self, session_id: str) -> Entry | None:
        """The Session's entry, if there is one, without waiting for who reads it."""
        with self._lock:
            return self._woken(session_id)

    @contextmanager
    def hold(self, session_id: str) -> Iterator[Entry]:
        """The Session's entry, to this thread alone. Kept afterwards if it then holds something."""
        with self._lock:
            entry = self._woken(session_id)
            if entry is None:
                entry = self._ready[session_id] = Entry()
        with entry.lock:
            try:
                yield entry
            finally:
                with self._lock:
                    self._store(session_id, entry)

    def _woken(self, session_id: str) -> Entry | None:
        """The Session's entry, ready for use from now on."""
        entry = self._ready.get(session_id)
        if entry is not None:
            self._ready.move_to_end(session_id)
            return entry
        at_rest = self._resting.pop(session_id, None)
        if at_rest is None:
            return None
        self._bytes -= _weight(session_id, at_rest)
        if isinstance(at_rest, bytes):
            at_rest = restored(session_id, at_rest, self._root, self._most_bytes)
        self._put(session_id, at_rest)
        return at_rest

    def _store(self, session_id: str, entry: Entry) -> None:
        """Takes an entry back that was held; another thread may have put one of its own there meanwhile."""
        before = self._ready.pop(session_id, None) or self._resting.pop(session_id, None)
        if before is not None:
            self._bytes -= _weight(session_id, before)
        if entry.state is not None:
            self._put(session_id, entry)

    def _put(self, session_id: str, entry: Entry) -> None:
        entry.weight = sys.getsizeof(session_id) + entry.bytes
        self._ready[session_id] = entry
        self._bytes += entry.weight
        while len(self._ready) > MOST_READY:
            self._lay_down(*self._ready.popitem(last=False))
        while self._bytes > self._most_bytes:
            forgotten = (self._resting or self._ready).popitem(last=False)
            self._bytes -= _weight(*forgotten)

    def _lay_down(self, session_id: str, entry: Entry) -> None:
        at_rest = compacted(session_id, entry) or entry
        self._resting[session_id] = at_rest
        self._bytes += _weight(session_id, at_rest) - entry.weight


def _weight(session_id: str, entry: Entry | bytes) -> int:
    return _PLACE_BYTES + sys.getsizeof(session_id) + len(entry) if isinstance(entry, bytes) else entry.weight
