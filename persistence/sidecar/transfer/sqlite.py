"""A SQLite store as one end of a transfer."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from persistence.sidecar.sqlite_connections import SqliteConnections
from persistence.sidecar.transfer.ends import STOPPED, Role, check_alone
from persistence.sidecar.transfer.tables import (
    TOPOLOGY_NAMES,
    Mark,
    Page,
    Progress,
    Row,
    Table,
    cursor_of,
    key_at,
)

_BUSY_TIMEOUT_S = 30.0
_TABLES = ("meta", "session", "item", "command", "fence")
_NAMES = ", ".join(f"'{name}'" for name in TOPOLOGY_NAMES)


class _Form(NamedTuple):
    """How a table is read and written: its rows in the order of a key that ends each row, and the key before all."""

    read: str
    first: Row
    write: str


_FORMS = {
    Table.TOPOLOGY: _Form(
        f"SELECT name, value, name FROM meta WHERE name IN ({_NAMES}) AND name > ? ORDER BY name LIMIT ?",  # noqa: S608  names of ours
        ("",),
        "INSERT INTO meta (name, value) VALUES (?, ?)",
    ),
    Table.FENCE: _Form(
        """SELECT generation, partition, epoch, owner, sequence, generation, partition FROM fence
           WHERE (generation, partition) > (?, ?) ORDER BY generation, partition LIMIT ?""",
        (-1, -1),
        "INSERT INTO fence (generation, partition, epoch, owner, sequence) VALUES (?, ?, ?, ?, ?)",
    ),
    Table.SESSION: _Form(
        "SELECT key, id, created_at, cwd, revision, key FROM session WHERE key > ? ORDER BY key LIMIT ?",
        (0,),
        "INSERT INTO session (key, id, created_at, cwd, revision) VALUES (?, ?, ?, ?, ?)",
    ),
    Table.ITEM: _Form(
        """SELECT session.id, message_id, position, rating, note, version, item.created_at, updated_at,
                  item.session, message_id
           FROM item JOIN session ON session.key = item.session
           WHERE (item.session, message_id) > (?, ?) ORDER BY item.session, message_id LIMIT ?""",
        (-1, ""),
        """INSERT INTO item (session, message_id, position, rating, note, version, created_at, updated_at)
           VALUES ((SELECT key FROM session WHERE id = ?), ?, ?, ?, ?, ?, ?, ?)""",
    ),
    Table.COMMAND: _Form(
        """SELECT generation, partition, sequence, id, session, digest, event, applied_at, expires_at,
                  generation, partition, sequence
           FROM command WHERE (generation, partition, sequence) > (?, ?, ?)
           ORDER BY generation, partition, sequence LIMIT ?""",
        (-1, -1, -1),
        """INSERT INTO command
               (generation, partition, sequence, id, session, digest, event, applied_at, expires_at)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    ),
}
_COUNT: dict[Table, str] = {table: f"SELECT count(*) FROM {table}" for table in Table}  # noqa: S608  names of ours
_COUNT[Table.TOPOLOGY] = f"SELECT count(*) FROM meta WHERE name IN ({_NAMES})"  # noqa: S608  as above
_COUNTED = """UPDATE meta SET value = CASE name
                  WHEN 'sessions' THEN (SELECT count(*) FROM session)
                  WHEN 'items' THEN (SELECT count(*) FROM item)
                  ELSE (SELECT count(*) FROM command) END
              WHERE name IN ('sessions', 'items', 'commands')"""


class SqliteEnd:
    """`StoreEnd` in a SQLite file, which is made where there is none."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreForeign` and `StoreUnavailable` as `SqliteStore` does."""
        self.location = f"sqlite:///{os.path.realpath(path)}"
        self._connections = SqliteConnections(path, _BUSY_TIMEOUT_S, durable=True, serving=False)

    def mark(self, role: Role) -> Mark | None:
        """What the store knows of a transfer that it has this part in."""
        with self._connections.lease() as connection:
            row = connection.execute(
                "SELECT id, peer, finished, progress FROM transfer WHERE role = ?", (role,)
            ).fetchone()
        if row is None:
            return None
        transfer, peer, finished, progress = row
        return Mark(transfer, peer, bool(finished), msgspec.msgpack.decode(progress, type=Progress))

    def is_empty(self) -> bool:
        """Whether nothing is stored."""
        return not any(map(self.count, Table))

    def count(self, table: Table) -> int:
        """How many rows a table has."""
        with self._connections.lease() as connection:
            (rows,) = connection.execute(_COUNT[table]).fetchone()
            return int(rows)

    def page(self, table: Table, cursor: bytes, limit: int) -> Page:
        """Up to `limit` rows behind the cursor."""
        form = _FORMS[table]
        width = len(form.first)
        with self._connections.lease() as connection:
            found = connection.execute(form.read, (*key_at(cursor, form.first), limit)).fetchall()
        return Page([row[:-width] for row in found], cursor_of(found[-1][-width:]) if found else cursor)

    def begin(self, mark: Mark) -> None:
        """Become an unfinished copy."""
        with self._writing() as connection:
            _note(connection, "target", mark)

    def seal(self, mark: Mark) -> None:
        """Refuse every write from now on."""
        reason = f"is being moved to {mark.peer}: {STOPPED}".replace("'", "''")
        with self._writing() as connection:
            _note(connection, "source", mark)
            for table, event in product(_TABLES, ("INSERT", "UPDATE", "DELETE")):
                connection.execute(
                    f"CREATE TRIGGER sealed_{table}_{event} BEFORE {event} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{reason}'); END"
                )

    def write(self, table: Table, rows: Sequence[Row], before: Progress, after: Progress) -> None:
        """Add rows, and note how far that is."""
        with self._writing() as connection:
            known = connection.execute("SELECT progress FROM transfer WHERE role = 'target'").fetchone()
            check_alone(self.location, known, before)
            connection.executemany(_FORMS[table].write, rows)
            _note_progress(connection, "target", after)

    def finish(self, role: Role, progress: Progress) -> None:
        """Serve from now on, or never again."""
        with self._writing() as connection:
            if role == "target":
                connection.execute(_COUNTED)
            else:
                for table in _TABLES[1:]:
                    connection.execute(f"ALTER TABLE {table} RENAME TO moved_{table}")
            _note_progress(connection, role, progress)
            connection.execute("UPDATE transfer SET finished = 1 WHERE role = ?", (role,))

    def undo(self, role: Role) -> None:
        """Become empty, or serve again."""
        with self._writing() as connection:
            if role == "target":
                for table in _TABLES[1:]:
                    connection.execute(f"DELETE FROM {table}")  # noqa: S608  names of ours
                connection.execute(f"DELETE FROM meta WHERE name IN ({_NAMES})")  # noqa: S608  as above
            else:
                for table, event in product(_TABLES, ("INSERT", "UPDATE", "DELETE")):
                    connection.execute(f"DROP TRIGGER sealed_{table}_{event}")
            connection.execute("DELETE FROM transfer WHERE role = ?", (role,))

    def close(self) -> None:
        """Release the file."""
        self._connections.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connections.lease() as connection:
            self._connections.begin_writing(connection)
            yield connection
            connection.execute("COMMIT")


def _note(connection: sqlite3.Connection, role: Role, mark: Mark) -> None:
    row = (role, mark.transfer, mark.peer, mark.finished, msgspec.msgpack.encode(mark.progress))
    connection.execute("INSERT INTO transfer (role, id, peer, finished, progress) VALUES (?, ?, ?, ?, ?)", row)


def _note_progress(connection: sqlite3.Connection, role: Role, progress: Progress) -> None:
    connection.execute("UPDATE transfer SET progress = ? WHERE role = ?", (msgspec.msgpack.encode(progress), role))
