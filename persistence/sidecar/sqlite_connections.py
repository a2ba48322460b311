"""Connections to one SQLite database: how they are opened, shared out to threads, and given up after errors.

A connection is *leased* for one operation and comes back when that ends. So there are only as many
as operations at one time, none belongs to a thread (which may end), and a read inside of an open
transaction sees what others see.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from feedback.errors import StoreForeign, StoreUnavailable
from persistence.sidecar import schema
from persistence.sidecar.sqlite_errors import breaks_connection, is_busy, primary_code, translate

WAL_KEPT_BYTES = 32 * 2**20
"""What the WAL file keeps of its size when it starts anew: overwriting is faster than growing."""

_PRAGMAS = (
    # Where fsync stops short of the platter (macOS); means nothing elsewhere.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    # Checkpoints are made under the write lock, see `WriteAheadLog`.
    "PRAGMA wal_autocheckpoint = 0",
    f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}",
    "PRAGMA cache_size = -8192",
)

_LOOK_AGAIN_S = 0.0005
_SMALLEST_DATABASE = 512
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables


class _Connection(sqlite3.Connection):
    """A connection that knows whether it was opened before the last error of the disk, and whether SQLite waits."""

    generation = 0
    waits = True


class SqliteConnections:
    """A pool for one database file. May be used from any thread, but not in a child after a fork."""

    def __init__(self, path: Path, busy_timeout: float, *, durable: bool, serving: bool = True) -> None:
        """Open the first connection, making the database where there is none (but never its directory).

        Not `serving`, it may be a store that was moved or is being moved.

        Raises:
            StoreForeign: not a SQLite database, another program's, or a newer schema. Nothing was changed in it.
            StoreUnavailable: the directory is missing, or the file cannot be opened, read, locked or written.
        """
        self.busy_timeout = busy_timeout
        self.location = str(path)
        self._durable = durable
        self._serving = serving
        # As SQLite does: the log lies beside the real file.
        self._path_name = os.path.realpath(path)
        self._path = Path(self._path_name)
        self.log_name = f"{self._path_name}-wal"
        """Where the write-ahead log lies."""
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Connection] = []
        self._closed = False
        # Bumped when all connections made before are not to be used again.
        self._generation = 0
        self._file: tuple[int, int] | None = None
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreUnavailable(f"sidecar store {path}: needs SQLite 3.37, this Python has {sqlite3.sqlite_version}")
        try:
            first = self._open(create=True)
        except sqlite3.Error as error:
            raise translate(error, self.location) from error
        self._file = self._file_identity()
        self._give_back(first)

    @contextlib.contextmanager
    def lease(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """One connection for one operation, which begins by `begin_writing` if it is `writing`.

        An open transaction is rolled back when the block raises. After an error of the disk or the
        file, all connections are given up: the next lease opens the file anew, so that the store
        heals when the disk does.

        Raises:
            StoreForeign, StoreUnavailable: as the constructor; a SQLite error in the block is raised as one of them.
            ValueError: the block violated a constraint.
        """
        try:
            connection = self._take()
        except sqlite3.Error as error:
            raise translate(error, self.location) from error
        try:
            if not writing:
                self._let_wait(connection, waits=True)
            yield connection
        except sqlite3.Error as error:
            _roll_back(connection)
            if breaks_connection(error):
                self._retire_all()
            raise translate(error, self.location) from error
        except BaseException:
            _roll_back(connection)
            raise
        finally:
            self._give_back(connection)

    def begin_writing(self, connection: sqlite3.Connection) -> None:
        """Start a write transaction, waiting for other writers up to the busy timeout.

        Not with SQLite's own waiting: it sleeps up to 0.1 s between looks, so that a process which
        commits batch after batch starves all others.
        """
        self._let_wait(connection, waits=False)
        self._patiently(connection, "BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close what is idle now, and what is leased when it comes back."""
        with self._lock:
            self._closed = True
        self._retire_all()

    def _let_wait(self, connection: sqlite3.Connection, *, waits: bool) -> None:
        """Whether SQLite itself waits for others' locks."""
        assert isinstance(connection, _Connection), "it is one of this pool"
        if connection.waits != waits:
            connection.execute(f"PRAGMA busy_timeout = {int(self.busy_timeout * 1000) if waits else 0}")
            connection.waits = waits

    def _take(self) -> _Connection:
        if os.getpid() != self._process:
            # SQLite's locks stayed with the parent: writing through its connections would corrupt the file.
            raise StoreUnavailable(f"sidecar store {self.location}: opened before a fork; open another one here")
        if self._file_identity() != self._file:
            # Committing to a file that has lost its name would lose the commit.
            self._retire_all()
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"sidecar store {self.location}: closed")
            if self._idle:
                return self._idle.pop()
        connection = self._open(create=False)
        self._file = self._file_identity()
        return connection

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed and connection.generation == self._generation:
                self._idle.append(connection)
                return
        connection.close()

    def _retire_all(self) -> None:
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path_name)  # noqa: PTH116 - once a transaction, and pathlib takes as long again
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _open(self, *, create: bool) -> _Connection:
        self._refuse_foreign()
        # Only the constructor creates: a database that vanished later is a failure, not an empty store.
        connection = self._connect("mode=rwc" if create else "mode=rw")
        connection.generation = self._generation
        try:
            # FULL syncs the WAL in every commit; NORMAL may lose the last ones in a power cut.
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            schema.migrate(connection, self.location, create=create)
            if self._serving:
                schema.refuse_moved_away(connection, self.location)
            self._use_wal(connection)
            if self._durable:
                self._settle()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, query: str) -> _Connection:
        # No implicit BEGIN; and the pool, not the thread, says who uses a connection.
        return sqlite3.connect(
            f"{self._path.as_uri()}?{query}",
            self.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
            uri=True,
        )

    def _refuse_foreign(self) -> None:
        """Look at the header without locks, journals or recovery, which would leave traces in somebody else's file.

        Ours bears the application id from the first byte on that is written to it.
        """
        try:
            size = self._path.stat().st_size if self._path.is_file() else 0
        except OSError:
            return  # Opening it says what is wrong.
        if size == 0:
            self._refuse_orphaned_log()
            return
        if size < _SMALLEST_DATABASE:  # SQLite would take it for an empty one.
            raise StoreForeign(f"sidecar store {self.location}: not a SQLite database; not touched")
        with contextlib.closing(self._connect("mode=ro&immutable=1")) as probe:
            try:
                schema.check_ours(probe, self.location)
            except sqlite3.Error as error:
                if primary_code(error) == sqlite3.SQLITE_NOTADB:
                    raise translate(error, self.location) from error
                # Anything else is seen again, and reported, by a reader that takes locks.

    def _refuse_orphaned_log(self) -> None:
        """SQLite deletes the log of a database that is empty or that it makes: commits that stand nowhere else.

        Ours is never empty while it has a log: the tables are made before there is one.
        """
        with contextlib.suppress(OSError):
            if Path(self.log_name).stat().st_size > 0:
                raise StoreUnavailable(
                    f"sidecar store {self.location}: the file is missing or empty, but its write-ahead log is there; "
                    f"put the file back that belongs to {self.log_name}"
                )

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # SQLite does not wait for others here.
        (mode,) = self._patiently(connection, "PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(f"sidecar store {self.location}: no write-ahead log possible here (mode {mode})")
        # The WAL file comes into being with the first read.
        connection.execute("SELECT count(*) FROM meta").fetchone()

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                return connection.execute(statement)
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_AGAIN_S)

    def _settle(self) -> None:
        """Put on stable storage what this connection found in the WAL, and the names of both files.

        SQLite syncs the WAL in each commit, and the directory with the first sync of a WAL or
        journal that it made itself. Two cases are left: a process killed between its last write and
        its sync leaves a commit that recovery makes visible, although it may not be on the disk (and
        we would answer from it); and a WAL that a killed process made, but never synced, may lose
        its name. (Opening the main file here would drop SQLite's POSIX locks on it; the WAL has none.)
        """
        for name, flags in ((self.log_name, os.O_RDWR), (self._path.parent, os.O_RDONLY)):
            try:
                descriptor = os.open(name, flags | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise StoreUnavailable(
                    f"sidecar store {self.location}: cannot sync {name}: {error.strerror}"
                ) from error


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has rolled back by itself after some errors.
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
