"""The SQLite schema, and how an existing file is recognised and brought up to date.

A file is ours by its `application_id`, written in the transaction that makes the tables.
`meta.schema` counts the migrations that were applied; each is one transaction.
"""

import contextlib
import sqlite3
from collections.abc import Iterator

from feedback.errors import StoreForeign, StoreUnavailable
from persistence.sidecar.moved import refuse_moved

APPLICATION_ID = 0x46424B53
"""'FBKS' in the database header: how `file` and this program tell our stores from other databases."""

_INITIAL = (
    # Times are milliseconds since the Unix epoch. Ids may hold any Unicode, NUL included: TEXT compares bytes.
    """CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    # So that nobody has to scan a table to know.
    "INSERT INTO meta (name, value) VALUES ('sessions', 0), ('items', 0), ('commands', 0)",
    """CREATE TABLE session (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        cwd TEXT,
        revision INTEGER NOT NULL
    ) STRICT""",
    # Position is the revision that made the item: a list is sorted by it when it is read. An index in
    # that order would make every put dirty a second page, a third of what a batch writes.
    """CREATE TABLE item (
        session INTEGER NOT NULL,
        position INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        rating TEXT NOT NULL CHECK (rating IN ('positive', 'negative')),
        note TEXT,
        version TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (session, message_id)
    ) STRICT, WITHOUT ROWID""",
    # In the order in which they were recorded: a batch's rows fill a few pages at the end, where in the order of
    # their partitions' sequences each would make room for itself in between (two pages a command more). Files of
    # before have them so (WITHOUT ROWID), and go on with it: no statement depends on it.
    """CREATE TABLE command (
        generation INTEGER NOT NULL,
        partition INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        session TEXT NOT NULL,
        digest BLOB NOT NULL,
        event BLOB NOT NULL,
        applied_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        PRIMARY KEY (generation, partition, sequence)
    ) STRICT""",
    "CREATE INDEX command_expiry ON command (expires_at)",
    """CREATE TABLE fence (
        generation INTEGER NOT NULL,
        partition INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        owner TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (generation, partition)
    ) STRICT, WITHOUT ROWID""",
)

# A Session's history. By Session alone, each command would dirty a page of its own, which costs a batch a fifth
# more; within stretches of 2,048 numbers a batch's entries share a few pages, and a history is a seek a stretch.
_HISTORY = ("CREATE INDEX command_history ON command (generation, partition, sequence >> 11, session)",)

# A store's part in moving from one engine to another (`persistence.sidecar.transfer`).
_TRANSFER = (
    """CREATE TABLE transfer (
        role TEXT PRIMARY KEY CHECK (role IN ('source', 'target')),
        id BLOB NOT NULL,
        peer TEXT NOT NULL,
        finished INTEGER NOT NULL,
        progress BLOB NOT NULL
    ) STRICT, WITHOUT ROWID""",
)

# Each commit writes its fences anyway: there, what it adds to the counts costs no page of its own. `meta` keeps what
# was counted before, less what is pruned.
_COUNTED_BY_FENCES = tuple(
    f"ALTER TABLE fence ADD COLUMN {count} INTEGER NOT NULL DEFAULT 0" for count in ("sessions", "items", "commands")
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_INITIAL, _HISTORY, _TRANSFER, _COUNTED_BY_FENCES)
SCHEMA_VERSION = len(MIGRATIONS)


def check_ours(connection: sqlite3.Connection, location: str) -> None:
    """Raise `StoreForeign` unless the header bears our application id."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise StoreForeign(
            f"sidecar store {location}: another program's database (application_id {application_id:#x}); not touched"
        )


def stored_version(connection: sqlite3.Connection, location: str) -> int:
    """The file's schema version; 0 when the database is empty. Call it in a transaction: it reads more than once.

    Raises:
        StoreForeign: another program's database, or a schema that only a newer program knows.
    """
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if objects == 0:
        return 0
    check_ours(connection, location)
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if row is None or row[0] > SCHEMA_VERSION:
        raise StoreForeign(
            f"sidecar store {location}: written by a newer program (schema {row and row[0]}, this one knows up to "
            f"{SCHEMA_VERSION}); not touched: upgrade this program"
        )
    return int(row[0])


def migrate(connection: sqlite3.Connection, location: str, *, create: bool) -> None:
    """Apply the steps that an older database lacks; make the tables in an empty one only if `create` says so.

    Safe when several processes do it at once: the version is read again under the write lock.

    Raises:
        StoreForeign: as `stored_version`.
        StoreUnavailable: the database is empty, and there was one here before.
    """
    with _transaction(connection, "BEGIN"):
        version = stored_version(connection, location)
    if version == 0 and not create:
        raise StoreUnavailable(f"sidecar store {location}: emptied while in use")
    if version < SCHEMA_VERSION:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            _apply(connection, stored_version(connection, location))


def refuse_moved_away(connection: sqlite3.Connection, location: str) -> None:
    """Raise `StoreMoved` where the store was moved elsewhere, or is an unfinished copy."""
    refuse_moved(location, connection.execute("SELECT role, peer, finished FROM transfer").fetchall())


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(connection: sqlite3.Connection, version: int) -> None:
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('schema', ?)", (SCHEMA_VERSION,))
