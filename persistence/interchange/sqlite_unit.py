"""The unit in a database of storage-sqlite: one row holds a Session's record as compact JSON (FORMATS section 16).

Memory: the largest record.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from feedback.errors import MediumInvalid, MediumUnavailable
from persistence.atomic_file import make_directories, staged_file
from persistence.interchange.rows import (
    TABLE,
    UNIT,
    VERSION,
    Found,
    Refusal,
    Row,
    found_at,
    quoted,
    record_of,
)
from persistence.interchange.text import MAX_VALUE_CHARS, TextInvalid, decode
from persistence.session_log import jsontext
from persistence.sidecar.sqlite_errors import primary_code

_ROWS = f"u_{UNIT}_{TABLE}"
_NEXT = f"SELECT rowid, key, value FROM {_ROWS} WHERE rowid > ? ORDER BY rowid LIMIT 1"  # noqa: S608
_FIRST_ROWID = -(2**63)
_USER_VERSION = 1
MAGIC = b"SQLite format 3\0"
_WAL_VERSIONS = b"\2\2"
_COMPANIONS = ("-journal", "-wal", "-shm")
_MALFORMED_CODES = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_TOOBIG,
}
_MALFORMED = "malformed-medium"
_MISMATCH = "version-mismatch"

# To the letter, white space included: SQLite keeps the text.
_UNITS = """CREATE TABLE units (
      name    TEXT PRIMARY KEY,
      version INTEGER NOT NULL
    ) STRICT
  ;"""
_GLOBALS = """CREATE TABLE unit_globals (
      unit  TEXT PRIMARY KEY REFERENCES units(name),
      value TEXT NOT NULL
    ) STRICT
  ;"""
_TABLE = f"""CREATE TABLE "{_ROWS}" (
          key   TEXT PRIMARY KEY,
          value TEXT NOT NULL
        ) STRICT
      ;"""


def read_sqlite(path: Path) -> Iterator[Found]:
    """The rows of a database and the records that are none, in the order in which they were first written.

    All of it is looked at once before the first is given out; then a row at a time is read, so that whoever has the
    database open can go on writing. It is not written to here. (Beside one whose write-ahead log somebody has open,
    SQLite itself may put the log's index, `-shm`.)

    Raises:
        MediumInvalid: the original refuses to open such a database, its pages are damaged, or a row has more than
            `MAX_VALUE_CHARS` bytes.
        MediumUnavailable: it is locked, or cannot be read.
        OSError: there is no such file.
    """
    with path.open("rb") as file:
        header = file.read(len(MAGIC) + len(_WAL_VERSIONS) + 2)
    if not header:
        return  # as SQLite sees it: a database without tables
    if not header.startswith(MAGIC):
        raise MediumInvalid(str(path), _MALFORMED, "no SQLite database")
    # A log that was put away would be made anew by whoever opens the database for reading only.
    at_rest = header[18:20] == _WAL_VERSIONS and not _companions(path)
    with _opened(path, at_rest=at_rest) as connection:
        if not _has_table(connection, path):
            return
        connection.execute(f"SELECT total(length(key) + length(value)) FROM {_ROWS}").fetchone()  # noqa: S608
        if at_rest:
            _check_rest(path)
        last = _FIRST_ROWID
        while (row := connection.execute(_NEXT, (last,)).fetchone()) is not None:
            last, key, value = row
            yield _found(key, value)
        if at_rest:
            _check_rest(path)


def write_sqlite(path: Path, rows: Iterable[Row], *, replace: bool) -> None:
    """Put a database of these rows at `path`: whole, or not at all.

    Raises:
        FileExistsError: something is there, and not to `replace`.
        MediumUnavailable: as `check_alone`; or SQLite cannot write.
        OSError: it cannot be written.
    """
    check_alone(path)
    make_directories(path.parent)
    with (
        _typed(path),
        staged_file(path, replace=replace) as staged,
        closing(sqlite3.connect(staged, isolation_level=None)) as connection,
    ):
        # It is synced as a whole before it takes its place.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for statement in (_UNITS, _GLOBALS, _TABLE, f"PRAGMA user_version = {_USER_VERSION}", "BEGIN"):
            connection.execute(statement)
        connection.execute("INSERT INTO units (name, version) VALUES (?, ?)", (UNIT, VERSION))
        for row in rows:
            value = jsontext.encode(record_of(row)).decode()
            connection.execute(f"INSERT INTO {_ROWS} (key, value) VALUES (?, ?)", (row.session_id, value))  # noqa: S608
        connection.execute("COMMIT")


def check_alone(path: Path) -> None:
    """Raises `MediumUnavailable` when a log or journal lies beside a database, which would be mixed up with another."""
    if companions := _companions(path):
        raise MediumUnavailable(f"{path}: {', '.join(companions)} lies beside it: another program has it open")


@contextmanager
def _opened(path: Path, *, at_rest: bool) -> Iterator[sqlite3.Connection]:
    """A connection for reading only, each statement in a transaction of its own."""
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if at_rest else ''}"
    with _typed(path), closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # As of a JSON document: a larger row would have to be held in memory, too.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_CHARS)
        yield connection


@contextmanager
def _typed(path: Path) -> Iterator[None]:
    """What SQLite says against a database, as our failures."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if primary_code(error) in _MALFORMED_CODES:
            raise MediumInvalid(str(path), _MALFORMED, str(error)) from None
        raise MediumUnavailable(f"{path}: {error}") from None


def _has_table(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether there is a table of ours; a fresh database has none yet, nor has a unit that was never written.

    Raises:
        MediumInvalid: the database or the unit is of another version.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found not in (0, _USER_VERSION):
        raise MediumInvalid(str(path), _MISMATCH, f"schema version {found} of the database, expected {_USER_VERSION}")
    if found == 0:
        return False
    unit = connection.execute("SELECT version FROM units WHERE name = ?", (UNIT,)).fetchone()
    if unit is not None and unit[0] != VERSION:
        raise MediumInvalid(str(path), _MISMATCH, f"version {unit[0]} of the unit {UNIT}")
    table = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (_ROWS,)).fetchone()
    return unit is not None and table is not None


def _found(key: object, value: object) -> Found:
    if not isinstance(key, str) or not isinstance(value, str):
        return Refusal(_ROWS, "a row whose key or value is no text")
    path = f"{_ROWS}[{quoted(key)}]"
    try:
        return found_at(f"{path} $", key, decode(value.encode("utf-8", "surrogatepass")))
    except TextInvalid as error:
        return Refusal(path, f"not valid JSON: {error}")


def _companions(path: Path) -> list[str]:
    """Names of what SQLite has beside a database that is open, or was not closed."""
    beside = (path.with_name(path.name + suffix) for suffix in _COMPANIONS)
    return [companion.name for companion in beside if companion.exists()]


def _check_rest(path: Path) -> None:
    if _companions(path):
        raise MediumUnavailable(f"{path}: another program opened it meanwhile; run this again")
