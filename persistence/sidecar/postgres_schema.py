"""The PostgreSQL schema, and how an existing one is recognised and brought up to date.

Everything lies in a schema of its own, `session_feedback`, which is ours by the `application` that its `meta` names.
`meta.schema` counts the migrations that were applied. Tables are the ones of SQLite, but for what many writers
at once need: counts that are kept in slots, and a place for each Session (`persistence.sidecar.schema` has one writer).
"""

from typing import LiteralString

from feedback.errors import StoreForeign, StoreUnavailable
from persistence.sidecar.moved import refuse_moved
from persistence.sidecar.postgres_session import Query, Session
from persistence.sidecar.schema import APPLICATION_ID

SCHEMA = "session_feedback"
SLOTS = 64
"""Rows that the counts of items and records are spread over, so that partitions do not wait for each other's commit."""

_INITIAL: tuple[LiteralString, ...] = (
    "CREATE TABLE meta (name text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50)",
    "INSERT INTO meta (name, value) VALUES ('sessions', 0)",
    # Ids are keys (`postgres_text`), with the whole id beside those that are too long for an index. Times are
    # milliseconds since the Unix epoch. `place` is dense, in the order of commits.
    """CREATE TABLE session (
        id bytea PRIMARY KEY,
        long_id bytea,
        place bigint NOT NULL UNIQUE,
        created_at bigint NOT NULL,
        cwd bytea,
        revision bigint NOT NULL
    ) WITH (fillfactor = 80)""",
    # Position is the revision that made the item: a list is sorted by it when it is read.
    """CREATE TABLE item (
        session bytea NOT NULL,
        message bytea NOT NULL,
        long_message bytea,
        position bigint NOT NULL,
        rating text NOT NULL CHECK (rating IN ('positive', 'negative')),
        note bytea,
        version bytea NOT NULL,
        created_at bigint NOT NULL,
        updated_at bigint NOT NULL,
        PRIMARY KEY (session, message)
    ) WITH (fillfactor = 80)""",
    """CREATE TABLE command (
        generation bigint NOT NULL,
        partition bigint NOT NULL,
        sequence bigint NOT NULL,
        id bytea NOT NULL UNIQUE CHECK (length(id) = 16),
        session bytea NOT NULL,
        long_session bytea,
        digest bytea NOT NULL,
        event bytea NOT NULL,
        applied_at bigint NOT NULL,
        expires_at bigint NOT NULL,
        PRIMARY KEY (generation, partition, sequence)
    )""",
    "CREATE INDEX command_expiry ON command (expires_at)",
    # A Session's history in stretches of 2,048 numbers, as in SQLite: a batch's entries share a few pages. One number
    # names the stretch, so that nobody takes this index for the primary key's.
    """CREATE INDEX command_history
       ON command (((generation << 44) | (partition << 32) | (sequence >> 11)), session, sequence)""",
    """CREATE TABLE fence (
        generation bigint NOT NULL,
        partition bigint NOT NULL,
        epoch bigint NOT NULL,
        owner bytea NOT NULL,
        sequence bigint NOT NULL,
        PRIMARY KEY (generation, partition)
    ) WITH (fillfactor = 25)""",
    """CREATE TABLE tally (
        slot integer PRIMARY KEY,
        items bigint NOT NULL DEFAULT 0,
        commands bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 25)""",
    # As many as `SLOTS`.
    "INSERT INTO tally (slot) SELECT generate_series(0, 63)",
    """CREATE TABLE transfer (
        role text PRIMARY KEY CHECK (role IN ('source', 'target')),
        id bytea NOT NULL,
        peer bytea NOT NULL,
        finished boolean NOT NULL,
        progress bytea NOT NULL
    )""",
)

MIGRATIONS: tuple[tuple[LiteralString, ...], ...] = (_INITIAL,)
SCHEMA_VERSION = len(MIGRATIONS)

TRANSFERS: LiteralString = "SELECT role, convert_from(peer, 'UTF8'), finished FROM transfer"

# Not by `to_regclass`: whoever asked before, and then waited for a lock, would get its old answer again.
_FIND: LiteralString = """
    SELECT count(*) > 0, count(*) FILTER (WHERE relname = 'meta') > 0
    FROM pg_namespace LEFT JOIN pg_class ON relnamespace = pg_namespace.oid WHERE nspname = 'session_feedback'"""
_VERSION: LiteralString = "SELECT name, value FROM session_feedback.meta WHERE name IN ('application', 'schema')"
# One migrating process at a time. The number is ours ('FBKS'), locks of others in this database hardly have it.
_LOCK: LiteralString = "SELECT pg_advisory_xact_lock(1178749779)"
_NOTE_VERSION: LiteralString = """
    INSERT INTO meta (name, value) VALUES ('application', %s), ('schema', %s)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""


def stored_version(session: Session, location: str) -> int:
    """The database's schema version; 0 where there is nothing of ours.

    Raises:
        StoreForeign: somebody else's schema of our name, or a version that only a newer program knows.
    """
    (((namespace, table),),) = session.ask([(_FIND, ())])
    if not namespace:
        return 0
    known: dict[str, int] = dict(session.ask([(_VERSION, ())])[0]) if table else {}
    if known.get("application") != APPLICATION_ID:
        raise StoreForeign(f"sidecar store {location}: its schema {SCHEMA} is another program's; not touched")
    version = known["schema"]
    if version > SCHEMA_VERSION:
        raise StoreForeign(
            f"sidecar store {location}: written by a newer program (schema {version}, this one knows up to "
            f"{SCHEMA_VERSION}); not touched: upgrade this program"
        )
    return version


def require(session: Session, location: str) -> None:
    """Refuse a database that cannot be the one that this process was started on.

    Raises:
        StoreForeign: as `stored_version`.
        StoreUnavailable: nothing of ours is there any more, or an older state of it.
    """
    version = stored_version(session, location)
    if version != SCHEMA_VERSION:
        found = f"schema {version} stands there now: start this process anew" if version else "emptied while in use"
        raise StoreUnavailable(f"sidecar store {location}: {found}")


def refuse_moved_away(session: Session, location: str) -> None:
    """Raise `StoreMoved` where the store was moved elsewhere, or is an unfinished copy."""
    refuse_moved(location, session.ask([(TRANSFERS, ())])[0])


def migrate(session: Session, location: str) -> None:
    """Make what is missing, in one transaction. Any number of processes may do so at once: they take turns.

    Raises:
        StoreForeign: as `stored_version`.
    """
    # Whoever waits for its turn waits as long as it takes; whoever has it and freezes is thrown out.
    limits: list[Query] = [
        ("SET LOCAL lock_timeout = 0", ()),
        ("SET LOCAL idle_in_transaction_session_timeout = 30000", ()),
    ]
    session.ask([("BEGIN", ()), *limits, (_LOCK, ())])
    version = stored_version(session, location)
    create: list[Query] = [] if version else [("CREATE SCHEMA session_feedback", ())]
    steps: list[Query] = [(statement, ()) for step in MIGRATIONS[version:] for statement in step]
    session.ask_and_commit([*create, *steps, (_NOTE_VERSION, (APPLICATION_ID, SCHEMA_VERSION))])
