"""The file that keeps summaries between runs. Nothing is lost with it: what is of another shape is made anew."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from feedback.errors import StoreForeign

APPLICATION_ID = 0x46424B43
"""'FBKC' in the database header: how a file is known to be ours to replace."""

_VERSION = 1

_TABLE = """CREATE TABLE summary (
    key INTEGER PRIMARY KEY,
    project BLOB NOT NULL,
    segment TEXT NOT NULL,
    -- The log that counts, and the Session directory's state when that was decided.
    name TEXT NOT NULL,
    directory_mtime_ns INTEGER NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    -- How far the log was read, and what it began with: from there on the next reading goes (0: from the beginning).
    read_to INTEGER NOT NULL,
    next_seq INTEGER NOT NULL,
    head BLOB NOT NULL,
    tail BLOB NOT NULL,
    tally BLOB NOT NULL,
    -- What is searched and shown.
    id TEXT NOT NULL,
    cwd TEXT,
    model TEXT,
    updated_at INTEGER NOT NULL,
    words TEXT NOT NULL,
    document BLOB NOT NULL,
    UNIQUE (project, segment)
) STRICT"""
_INDEXES = ("CREATE INDEX summary_recent ON summary (updated_at, key)", "CREATE INDEX summary_id ON summary (id)")


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the cache at `path`, for any thread, one at a time; the file is made where there is none.

    Raises:
        StoreForeign: something else lies there. It is left alone.
        sqlite3.Error, OSError: it cannot be opened or written.
    """
    if not path.exists():
        # What people asked is nobody else's business. One that exists is not opened: closing it drops SQLite's locks.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
            raise
        raise StoreForeign(f"summaries {path}: not a SQLite database; not touched") from None
    if objects and application_id != APPLICATION_ID:
        raise StoreForeign(f"summaries {path}: another program's database; not touched")
    if version != _VERSION or not objects:
        connection.execute("DROP TABLE IF EXISTS summary")
        for statement in (_TABLE, *_INDEXES):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    # A power cut may take the last changes with it: they are made again from the logs.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
