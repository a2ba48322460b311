"""Reading a log's bytes from an open file, as far as its size was when the reading began."""

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple, Self

from persistence.session_log.damage import Unsteady

# Larger pieces, come and gone between what the index keeps, leave holes in the C library's heap that nothing else
# fits into: five times what is kept.
CHUNK_BYTES = 1 << 16
_WINDOW_BYTES = CHUNK_BYTES


class Revision(NamedTuple):
    """What a stat says about a file; equal revisions are taken for equal content (FORMATS section 10)."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The revision that one stat result stands for."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @classmethod
    def at(cls, path: str) -> Self:
        """The revision of what a path names now. Raises OSError."""
        return cls.of(os.stat(path))  # noqa: PTH116 - the barrier's fast way: one call, no objects

    def same_file(self, other: "Revision") -> bool:
        """Whether both describe one file, whatever its content."""
        return self[:2] == other[:2]


class Source:
    """Random access to the first `size` bytes of a file, through a small window.

    Raises Unsteady when the file turns out shorter than `size`, OSError as the system does.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._window = b""
        self._window_at = 0

    def read(self, at: int, length: int) -> bytes:
        """The bytes `at` to `at + length`, fewer where the file ends."""
        length = min(length, self.size - at)
        if length <= 0:
            return b""
        start = at - self._window_at
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        if length > _WINDOW_BYTES:
            return self._pread(at, length)
        self._window, self._window_at = self._pread(at, min(_WINDOW_BYTES, self.size - at)), at
        return self._window[:length]

    def chunks(self, at: int) -> Iterator[bytes]:
        """Everything from `at` to the end, piece by piece."""
        while at < self.size:
            chunk = self.read(at, CHUNK_BYTES)
            yield chunk
            at += len(chunk)

    def find(self, needle: bytes, at: int) -> int:
        """Where `needle` next stands at or after `at`; -1 when it does not."""
        while at < self.size:
            found = self.read(at, CHUNK_BYTES).find(needle)
            if found >= 0:
                return at + found
            at += max(1, CHUNK_BYTES - len(needle) + 1)
        return -1

    def _pread(self, at: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, at)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), at + len(data))
            if not more:
                raise Unsteady("the file became shorter while it was read")
            data += more
        return data


def is_regular(descriptor: int) -> bool:
    """Whether the open file is a regular one: a device or a pipe has no end to read to."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
