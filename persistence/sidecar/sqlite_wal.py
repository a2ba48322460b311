"""A SQLite file's write-ahead log (WAL): how it grows, and when it is copied into the main file."""

import contextlib
import os
import threading

from feedback.errors import FeedbackError
from persistence.sidecar.sqlite_connections import WAL_KEPT_BYTES, SqliteConnections

# Together the bound on the WAL, unless another program's reader holds it open. So many pages fit into what is kept.
_CHECKPOINT_PAGES = 7000
_CHECKPOINT_BYTES = 2 * WAL_KEPT_BYTES
# A changed row dirties its own page and up to four of indexes, which it may share with others of its batch.
_LEAST_PAGES_A_CHANGE, _MOST_PAGES_A_CHANGE = 0.25, 5.0
_LEAST_ROOM, _MOST_ROOM = 256 * 2**10, 2**20
_SPARE = 16
"""So many times what is taken must be free on the disk: what others on it need is not found out by taking it."""
_PAGE = 4096


class WriteAheadLog:
    """The WAL as one process's store sees to it, from any of its threads.

    It is made longer ahead of need, with zeros, up to what SQLite keeps of it when it starts anew. To sync a file that
    has grown is to commit the file system's journal, and to write whatever else grew meanwhile, such as the server's
    append-only file: a commit takes twice as long as one into blocks that are there. SQLite reads frames up to the
    first that is none of its own, as it does where a longer log was there before.

    Checkpoints copy it into the main file, every 7,000 pages or so. They are made here, under the write lock, instead
    of by SQLite: before 3.51.3 a checkpoint that meets another process's commit at the wrong instant can lose pages
    (sqlite.org/wal.html, "WAL-reset bug").
    """

    def __init__(self, connections: SqliteConnections, *, durable: bool) -> None:
        """Not `durable`, nothing is synced, and there is no growth to be spared."""
        self._connections = connections
        self._durable = durable
        self._lock = threading.Lock()
        self._failure: str | None = None
        # How much this process added since its last checkpoint, is estimated by what it changed.
        self._changes = 0
        self._pages_a_change = _MOST_PAGES_A_CHANGE
        self._length = 0
        """What the file was when this process looked last, with the room that it made."""

    def make_room(self) -> None:
        """Make it longer if it has grown. The caller holds the write lock: nobody else appends, or starts it anew."""
        size = self._bytes()
        grew, self._length = size > self._length, size
        if grew and self._durable and size < WAL_KEPT_BYTES:
            with contextlib.suppress(OSError):  # the commits may still fit
                self._length = _lengthened(self._connections.log_name, size)

    def committed(self, changes: int) -> None:
        """So many rows were changed in a commit, which stands, whatever becomes of a checkpoint that is due."""
        self._changes += changes
        if self._changes * self._pages_a_change > _CHECKPOINT_PAGES or self._length > _CHECKPOINT_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Copy it into the main file. A failure is kept for `findings`, and the next time tries again.

        One connection holds the write lock, so that no commit can restart the WAL meanwhile; another
        one copies, as far as readers allow, without waiting for them.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            with self._connections.lease(writing=True) as guard, self._connections.lease() as copier:
                self._connections.begin_writing(guard)
                _, pages, _ = copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                guard.execute("ROLLBACK")
            self._failure = None
            if pages >= 0:  # else somebody else is copying
                a_change = pages / max(1, self._changes)
                self._pages_a_change = min(max(a_change, _LEAST_PAGES_A_CHANGE), _MOST_PAGES_A_CHANGE)
        except FeedbackError as error:
            self._failure = str(error)
        finally:
            self._changes = 0
            self._lock.release()

    def findings(self) -> list[str]:
        """What looks wrong, for `health`."""
        findings = [] if self._failure is None else [f"the last checkpoint failed: {self._failure}"]
        if (size := self._bytes()) > 2 * _CHECKPOINT_BYTES:
            findings.append(f"the write-ahead log has {size} bytes: does another program hold it open?")
        return findings

    def _bytes(self) -> int:
        try:
            return os.stat(self._connections.log_name).st_size  # noqa: PTH116 - once a commit
        except OSError:
            return 0


def _lengthened(name: str, size: int) -> int:
    """The size of the file after it was made as long again, within bounds; the same if that is not called for.

    Raises:
        OSError: it cannot be read or written.
    """
    room = min(max(size, _LEAST_ROOM), _MOST_ROOM, WAL_KEPT_BYTES - size)
    descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < _SPARE * room:
            return size
        if os.pread(descriptor, _PAGE, size - _PAGE) == bytes(_PAGE):
            return size  # room that another process made
        if _written(descriptor, bytes(room), size):
            return size + room
        os.ftruncate(descriptor, size)
        return size
    finally:
        os.close(descriptor)


def _written(descriptor: int, zeros: bytes, place: int) -> bool:
    """Whether there was room for all of them."""
    try:
        return os.pwrite(descriptor, zeros, place) == len(zeros)
    except OSError:
        return False
