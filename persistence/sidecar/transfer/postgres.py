"""A PostgreSQL store as one end of a transfer."""

from collections.abc import Callable, Sequence
from typing import LiteralString, NamedTuple

import msgspec
from psycopg import sql
from psycopg.rows import TupleRow

from persistence.sidecar.postgres_connections import PostgresConnections
from persistence.sidecar.postgres_errors import SEALED
from persistence.sidecar.postgres_rows import columns
from persistence.sidecar.postgres_session import Query, Session
from persistence.sidecar.postgres_text import decoded, key_of, long_of, text_of
from persistence.sidecar.postgres_url import parse
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

# In the order in which a batch writes them, so that whoever is in the midst of one is waited for.
_TABLES = ("meta", "session", "item", "tally", "command", "fence")
_DATA = ("session", "item", "command", "fence")


class _Form(NamedTuple):
    """How a table is read and written: in the order of a key that ends each row, from the first possible one on."""

    read: LiteralString
    first: Row
    decoded: Callable[[TupleRow], Row]
    write: LiteralString
    encoded: Callable[[Row], tuple[object, ...]]


_FORMS = {
    Table.TOPOLOGY: _Form(
        """SELECT name, value, name FROM meta
           WHERE name IN ('deployment', 'former', 'generation', 'partitions', 'retired') AND name COLLATE "C" > %b
           ORDER BY name COLLATE "C" LIMIT %s""",
        ("",),
        tuple,
        "INSERT INTO meta (name, value) SELECT * FROM unnest(%b::text[], %b::bigint[])",
        tuple,
    ),
    Table.FENCE: _Form(
        """SELECT generation, partition, epoch, owner, sequence, generation, partition FROM fence
           WHERE (generation, partition) > (%s, %s) ORDER BY generation, partition LIMIT %s""",
        (-1, -1),
        lambda row: (*row[:3], decoded(row[3]), row[4]),
        """INSERT INTO fence (generation, partition, epoch, owner, sequence)
           SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bigint[])""",
        lambda row: (*row[:3], _bytes(row[3]), row[4]),
    ),
    Table.SESSION: _Form(
        """SELECT place, id, long_id, created_at, cwd, revision, place FROM session
           WHERE place > %s ORDER BY place LIMIT %s""",
        (0,),
        lambda row: (row[0], text_of(row[1], row[2]), row[3], _text(row[4]), row[5]),
        """INSERT INTO session (place, id, long_id, created_at, cwd, revision)
           SELECT * FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[], %b::bigint[], %b::bytea[], %b::bigint[])""",
        lambda row: (row[0], *_id(row[1]), row[2], _bytes(row[3]), row[4]),
    ),
    Table.ITEM: _Form(
        """SELECT session.id, session.long_id, message, long_message, position, rating, note, version,
                  item.created_at, updated_at, item.session, message
           FROM item JOIN session ON session.id = item.session
           WHERE (item.session, message) > (%b, %b) ORDER BY item.session, message LIMIT %s""",
        (b"", b""),
        lambda row: (
            *(text_of(row[0], row[1]), text_of(row[2], row[3]), row[4], row[5]),
            *(_text(row[6]), _text(row[7]), row[8], row[9]),
        ),
        """INSERT INTO item (session, message, long_message, position, rating, note, version, created_at, updated_at)
           SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[], %b::text[], %b::bytea[],
                                %b::bytea[], %b::bigint[], %b::bigint[])""",
        lambda row: (_id(row[0])[0], *_id(row[1]), row[2], row[3], _bytes(row[4]), _bytes(row[5]), *row[6:]),
    ),
    Table.COMMAND: _Form(
        """SELECT generation, partition, sequence, id, session, long_session, digest, event, applied_at, expires_at,
                  generation, partition, sequence
           FROM command WHERE (generation, partition, sequence) > (%s, %s, %s)
           ORDER BY generation, partition, sequence LIMIT %s""",
        (-1, -1, -1),
        lambda row: (*row[:4], text_of(row[4], row[5]), *row[6:]),
        """INSERT INTO command
               (generation, partition, sequence, id, session, long_session, digest, event, applied_at, expires_at)
           SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[],
                                %b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[])""",
        lambda row: (*row[:4], *_id(row[4]), *row[5:]),
    ),
}
_COUNT: LiteralString = """
    SELECT (SELECT count(*) FROM meta
            WHERE name IN ('deployment', 'former', 'generation', 'partitions', 'retired')),
           (SELECT count(*) FROM fence), (SELECT count(*) FROM session), (SELECT count(*) FROM item),
           (SELECT count(*) FROM command)"""
_MARK: LiteralString = "SELECT id, convert_from(peer, 'UTF8'), finished, progress FROM transfer WHERE role = %s"
_PROGRESS: LiteralString = "SELECT progress FROM transfer WHERE role = 'target' FOR UPDATE"
_NOTE_PROGRESS: LiteralString = "UPDATE transfer SET progress = %b, finished = %s WHERE role = %s"
_TRIGGER: LiteralString = """
    CREATE TRIGGER sealed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}
    FOR EACH STATEMENT EXECUTE FUNCTION sealed()"""
_COUNTED: tuple[Query, ...] = (
    ("UPDATE meta SET value = (SELECT coalesce(max(place), 0) FROM session) WHERE name = 'sessions'", ()),
    (
        """UPDATE tally SET items = (SELECT count(*) FROM item), commands = (SELECT count(*) FROM command)
           WHERE slot = 0""",
        (),
    ),
)


class PostgresEnd:
    """`StoreEnd` in a PostgreSQL database, in which tables are made where there are none."""

    def __init__(self, url: str) -> None:
        """Raises `SettingsInvalid`, `StoreForeign` and `StoreUnavailable` as `PostgresStore` does."""
        self._connections = PostgresConnections(parse(url), serving=False)
        self.location = self._connections.location
        self._connections.migrate()

    @classmethod
    def find(cls, url: str) -> "PostgresEnd | None":
        """As the constructor, but None where no store was ever made."""
        return cls(url) if PostgresConnections(parse(url), serving=False).stored_version() else None

    def mark(self, role: Role) -> Mark | None:
        """What the store knows of a transfer that it has this part in."""
        rows = self._connections.run(lambda session: session.ask([(_MARK, (role,))])[0])
        if not rows:
            return None
        transfer, peer, finished, progress = rows[0]
        return Mark(transfer, peer, finished, msgspec.msgpack.decode(progress, type=Progress))

    def is_empty(self) -> bool:
        """Whether nothing is stored."""
        return not any(self._counts().values())

    def count(self, table: Table) -> int:
        """How many rows a table has."""
        return self._counts()[table]

    def page(self, table: Table, cursor: bytes, limit: int) -> Page:
        """Up to `limit` rows behind the cursor."""
        form = _FORMS[table]
        width = len(form.first)
        # No key is before the one that consists of nothing: the first page begins with it, not behind it.
        statement = form.read if cursor else form.read.replace(" > ", " >= ")
        query = statement, (*key_at(cursor, form.first), limit)
        found = self._connections.run(lambda session: session.ask([query])[0])
        rows = [form.decoded(row[:-width]) for row in found]
        return Page(rows, cursor_of(found[-1][-width:]) if found else cursor)

    def begin(self, mark: Mark) -> None:
        """Become an unfinished copy."""
        self._write([_noted("target", mark)])

    def seal(self, mark: Mark) -> None:
        """Refuse every write from now on."""

        locks = [_on(table, "LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE") for table in _TABLES]
        reason = _sealing(f"is being moved to {mark.peer}: {STOPPED}")
        triggers = [_on(table, _TRIGGER) for table in _TABLES]
        self._write([*locks, _noted("source", mark), (reason, ()), *triggers])

    def write(self, table: Table, rows: Sequence[Row], before: Progress, after: Progress) -> None:
        """Add rows, and note how far that is."""
        form = _FORMS[table]

        def write(session: Session) -> None:
            _, known = session.ask([("BEGIN", ()), (_PROGRESS, ())])
            check_alone(self.location, known[0] if known else None, before)
            session.ask_and_commit([(form.write, columns(map(form.encoded, rows))), _progressed("target", after)])

        self._connections.run(write, repeatable=False)

    def finish(self, role: Role, progress: Progress) -> None:
        """Serve from now on, or never again."""
        steps = _COUNTED if role == "target" else tuple(map(_renamed, _DATA))
        self._write([*steps, _progressed(role, progress, finished=True)])

    def undo(self, role: Role) -> None:
        """Become empty, or serve again."""
        emptied: list[Query] = [
            ("TRUNCATE session, item, command, fence", ()),
            ("DELETE FROM meta WHERE name = ANY (%s)", (list(TOPOLOGY_NAMES),)),
        ]
        opened: list[Query] = [("DROP FUNCTION sealed CASCADE", ())]
        steps = emptied if role == "target" else opened
        self._write([*steps, ("DELETE FROM transfer WHERE role = %s", (role,))])

    def close(self) -> None:
        """Release the connections."""
        self._connections.close()

    def _write(self, steps: Sequence[Query]) -> None:
        self._connections.run(lambda session: session.ask_and_commit([("BEGIN", ()), *steps]), repeatable=False)

    def _counts(self) -> dict[Table, int]:
        (counts,) = self._connections.run(lambda session: session.ask([(_COUNT, ())])[0])
        return dict(zip(Table, counts, strict=True))


def _noted(role: Role, mark: Mark) -> Query:
    row = (role, mark.transfer, mark.peer.encode(), mark.finished, msgspec.msgpack.encode(mark.progress))
    return "INSERT INTO transfer (role, id, peer, finished, progress) VALUES (%s, %b, %b, %s, %b)", row


def _progressed(role: Role, progress: Progress, *, finished: bool = False) -> Query:
    return _NOTE_PROGRESS, (msgspec.msgpack.encode(progress), finished, role)


def _on(table: str, statement: LiteralString) -> Query:
    return sql.SQL(statement).format(sql.Identifier(table)), ()


def _renamed(table: str) -> Query:
    names = sql.Identifier(table), sql.Identifier(f"moved_{table}")
    return sql.SQL("ALTER TABLE {} RENAME TO {}").format(*names), ()


def _sealing(reason: str) -> sql.Composed:
    return sql.SQL(
        "CREATE FUNCTION sealed() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING ERRCODE = {}, MESSAGE = convert_from({}, 'UTF8'); END $$"
    ).format(sql.Literal(SEALED), sql.Literal(reason.encode()))


def _id(text: object) -> tuple[bytes, bytes | None]:
    assert isinstance(text, str)
    return key_of(text), long_of(text)


def _bytes(text: object) -> bytes | None:
    return text.encode() if isinstance(text, str) else None


def _text(data: bytes | None) -> str | None:
    return None if data is None else decoded(data)
