"""The engine for many machines: one PostgreSQL database, any number of processes anywhere."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import LiteralString

from msgspec.structs import asdict, replace
from psycopg.rows import TupleRow

from feedback.partitions import PartitionId
from persistence.sidecar import postgres_schema as schema
from persistence.sidecar.moved import refuse_moved
from persistence.sidecar.postgres_connections import PostgresConnections
from persistence.sidecar.postgres_health import read_health
from persistence.sidecar.postgres_rows import columns, id_bytes, id_text, item_from, record_from, session_from
from persistence.sidecar.postgres_session import Query, Session
from persistence.sidecar.postgres_text import key_of, text_of
from persistence.sidecar.postgres_transaction import PostgresTransaction
from persistence.sidecar.postgres_url import parse
from persistence.sidecar.store import (
    CommandRecord,
    Fence,
    HistoryPosition,
    RecordedOutcome,
    SessionFeedback,
    StoredSession,
    StoredTopology,
    StoreHealth,
    StoreTransaction,
)
from persistence.sidecar.topology import serves, topology_from

_TOPOLOGY: LiteralString = """
    SELECT name, value FROM meta WHERE name IN ('generation', 'partitions', 'former', 'retired', 'deployment')"""
_SET_META: LiteralString = """
    INSERT INTO meta (name, value) SELECT * FROM unnest(%b::text[], %b::bigint[])
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
# Whoever needs the topology to stay as it is, or changes it, locks a row that is always there.
_HOLD_TOPOLOGY: LiteralString = "SELECT 1 FROM meta WHERE name = 'schema' FOR SHARE"
_CLAIM_TOPOLOGY: LiteralString = "SELECT 1 FROM meta WHERE name = 'schema' FOR UPDATE"
# In the order in which transactions lock them.
_RETIRE: LiteralString = """
    WITH old AS (SELECT generation, partition FROM fence WHERE generation < %s ORDER BY 1, 2 FOR NO KEY UPDATE)
    UPDATE fence SET epoch = epoch + 1, owner = 'retired' FROM old
    WHERE fence.generation = old.generation AND fence.partition = old.partition"""
_RAISE_EPOCHS: LiteralString = """
    INSERT INTO fence (generation, partition, epoch, owner, sequence)
    SELECT generation, partition, 1, %b::bytea, 0
    FROM unnest(%b::bigint[], %b::bigint[]) AS wanted (generation, partition) ORDER BY 1, 2
    ON CONFLICT (generation, partition) DO UPDATE SET epoch = fence.epoch + 1, owner = excluded.owner
    RETURNING generation, partition, epoch, sequence"""
_HEADS: LiteralString = """
    SELECT generation, partition, sequence FROM fence
    WHERE (generation, partition) IN (SELECT * FROM unnest(%b::bigint[], %b::bigint[]))"""
_OUTCOMES: LiteralString = """
    SELECT sequence, event FROM command
    WHERE generation = %s AND partition = %s AND sequence > %s ORDER BY sequence LIMIT %s"""
# Stretch by stretch (see the index), from the first number that is not forgotten; events only of what is asked for.
# OFFSET 0 keeps each look at the index what it is: one seek.
_HISTORY: LiteralString = """
    WITH found AS MATERIALIZED (
        SELECT fence.generation, fence.partition, entry.sequence
        FROM fence
        CROSS JOIN LATERAL (
            SELECT sequence >> 11 AS oldest FROM command
            WHERE generation = fence.generation AND partition = fence.partition ORDER BY sequence LIMIT 1
        ) AS kept
        CROSS JOIN LATERAL generate_series(kept.oldest, fence.sequence >> 11) AS stretch
        CROSS JOIN LATERAL (
            SELECT sequence FROM command
            WHERE (generation << 44) | (partition << 32) | (sequence >> 11)
                = (fence.generation << 44) | (fence.partition << 32) | stretch
            AND session = %b OFFSET 0
        ) AS entry
        WHERE (fence.generation, fence.partition, entry.sequence) > (%s, %s, %s)
        ORDER BY 1, 2, 3 LIMIT %s
    )
    SELECT found.*, outcome.applied_at, outcome.event
    FROM found
    CROSS JOIN LATERAL (
        SELECT applied_at, event FROM command
        WHERE generation = found.generation AND partition = found.partition AND sequence = found.sequence OFFSET 0
    ) AS outcome
    ORDER BY 1, 2, 3"""
# One statement, hence one snapshot; a Session without items gives one row of NULLs.
_FEEDBACK: LiteralString = """
    SELECT session.created_at, cwd, revision, position,
           message, long_message, rating, note, version, item.created_at, updated_at
    FROM session LEFT JOIN item ON item.session = session.id
    WHERE session.id = %b ORDER BY position"""
_STORED: LiteralString = "SELECT id, created_at, cwd, revision FROM session WHERE id = ANY (%b::bytea[])"
_SESSION_IDS: LiteralString = "SELECT place, id, long_id FROM session WHERE place > %s ORDER BY place LIMIT %s"
_RECORD: LiteralString = """
    SELECT generation, partition, sequence, id, session, long_session, digest, event, applied_at, expires_at
    FROM command WHERE id = %b"""
_RECORDED: LiteralString = "SELECT id FROM command WHERE id = ANY (%b::bytea[])"
_ANY_EXPIRED: LiteralString = "SELECT 1 FROM command WHERE expires_at < %s LIMIT 1"
# Records that a batch answers from are locked by it, others by another process that prunes: those are left.
_PRUNE: LiteralString = """
    WITH expired AS (
        SELECT generation, partition, sequence FROM command
        WHERE expires_at < %s ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM command USING expired
        WHERE command.generation = expired.generation AND command.partition = expired.partition
        AND command.sequence = expired.sequence RETURNING 1
    ), counted AS (
        UPDATE tally SET commands = commands - (SELECT count(*) FROM gone) WHERE slot = 0
    )
    SELECT count(*) FROM gone"""


class PostgresStore:
    """`SidecarStore` in one PostgreSQL database; see the protocol for the promises.

    A commit is durable when it is acknowledged (`synchronous_commit=on`, set by each connection for itself): on the
    server's disk, and on the synchronous standby's where the server has one.

    Reads go to the primary too: a standby may not have yet what was acknowledged.
    """

    def __init__(self, url: str) -> None:
        """Open the store, making its tables where there are none, or bringing older ones up to date.

        Raises:
            SettingsInvalid: not a URL that libpq takes.
            StoreForeign: another program's schema of our name, or a newer one of ours. Nothing was changed in it.
            StoreMoved: it was moved elsewhere, or is an unfinished copy.
            StoreUnavailable: out of reach, login refused, no rights, a standby, too old; with server and reason.
        """
        self._connections = PostgresConnections(parse(url))
        with self._connections.connected() as session:
            if schema.stored_version(session, self._connections.location):
                schema.refuse_moved_away(session, self._connections.location)
        self._connections.migrate()

    @classmethod
    def find(cls, url: str) -> "PostgresStore | None":
        """The store, or None when none was ever made in this database. Raises as the constructor."""
        return cls(url) if PostgresConnections(parse(url)).stored_version() else None

    def topology(self) -> StoredTopology | None:
        """The deployment's topology, or None in a new store."""
        return self._connections.run(_read_topology)

    def set_topology(self, topology: StoredTopology, *, replacing: StoredTopology | None) -> bool:
        """Compare-and-set; False when the stored one is not `replacing`."""

        def compare_and_set(session: Session) -> bool:
            session.ask([("BEGIN", ()), (_CLAIM_TOPOLOGY, ())])
            if _read_topology(session) != replacing:
                return False
            session.ask_and_commit([_written(topology)])
            return True

        return self._connections.run(compare_and_set, repeatable=False)

    def retire(self, topology: StoredTopology) -> None:
        """Mark the former generation retired and fence its last owners off, in one transaction."""
        retired = replace(topology, retired=True)

        def retire(session: Session) -> None:
            session.ask([("BEGIN", ()), (_CLAIM_TOPOLOGY, ())])
            if _read_topology(session) in {topology, retired}:
                session.ask_and_commit([_written(retired), (_RETIRE, (topology.generation,))])

        self._connections.run(retire)

    def acquire_fences(self, partitions: Sequence[PartitionId], owner: str) -> dict[PartitionId, Fence]:
        """Raise each partition's epoch by one, durably, in one transaction.

        Waits for an open transaction of the last owner, which the server ends when it stands still.
        """

        def acquire(session: Session) -> dict[PartitionId, Fence]:
            *_, transfers, topology = session.ask(
                [("BEGIN", ()), (_HOLD_TOPOLOGY, ()), (schema.TRANSFERS, ()), (_TOPOLOGY, ())]
            )
            refuse_moved(self._connections.location, transfers)
            known = topology_from(dict(topology))
            wanted = [(p.generation, p.number) for p in partitions if serves(known, p)]
            if not wanted:
                return {}
            (rows,) = session.ask_and_commit([(_RAISE_EPOCHS, (owner.encode(), *columns(wanted)))])
            return {PartitionId(generation, number): Fence(*fence) for generation, number, *fence in rows}

        # Done twice, it raises the epochs twice: the owner gets the newest.
        return self._connections.run(acquire)

    @contextlib.contextmanager
    def transaction(self, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        """Open a fenced transaction; one that neither loads nor applies has its fence checked at its end.

        Raises:
            PartitionsFenced, StoreUnavailable: as the protocol says.
        """
        transaction = PostgresTransaction(self._connections, epochs)
        try:
            yield transaction
            transaction.commit()
        finally:
            transaction.end()

    def heads(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """The last committed sequence of each partition (0: none)."""
        if not partitions:
            return {}
        rows = self._read(_HEADS, *columns((p.generation, p.number) for p in partitions))
        return dict.fromkeys(partitions, 0) | {
            PartitionId(generation, number): last for generation, number, last in rows
        }

    def outcomes(self, partition: PartitionId, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Recorded (sequence, event) pairs of a partition past `after`, ascending."""
        return self._read(_OUTCOMES, partition.generation, partition.number, after, limit)

    def history(self, session_id: str, after: HistoryPosition, limit: int) -> list[RecordedOutcome]:
        """Recorded outcomes of a Session past `after`, in commit order."""
        rows = self._read(_HISTORY, key_of(session_id), *after, limit)
        return [RecordedOutcome(PartitionId(generation, number), *rest) for generation, number, *rest in rows]

    def record(self, command_id: str) -> CommandRecord | None:
        """One command's record."""
        rows = self._read(_RECORD, id_bytes(command_id))
        return record_from(rows[0]) if rows else None

    def recorded(self, command_ids: Sequence[str]) -> set[str]:
        """Those of these commands that have a record."""
        rows = self._read(_RECORDED, list(map(id_bytes, command_ids))) if command_ids else []
        return {id_text(row[0]) for row in rows}

    def feedback(self, session_id: str) -> SessionFeedback | None:
        """A Session's feedback, of whatever identity is stored."""
        rows = self._read(_FEEDBACK, key_of(session_id))
        if not rows:
            return None
        stored = session_from(rows[0][:3])
        items = tuple(item_from(row[4:]) for row in rows if row[3] is not None)
        return SessionFeedback(session_id, stored.identity, stored.revision, items)

    def stored_sessions(self, session_ids: Sequence[str]) -> dict[str, StoredSession]:
        """The rows of these Sessions, those that exist."""
        by_key = {key_of(session_id): session_id for session_id in session_ids}
        rows = self._read(_STORED, list(by_key)) if by_key else []
        return {by_key[row[0]]: session_from(row[1:]) for row in rows}

    def session_ids(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Sessions past a place, in the order in which they were first stored."""
        return [(place, text_of(key, long)) for place, key, long in self._read(_SESSION_IDS, after, limit)]

    def prune(self, *, expired_before: int, limit: int) -> int:
        """Forget up to `limit` command records whose `expires_at` is earlier, the earliest first; how many went."""
        if not self._read(_ANY_EXPIRED, expired_before):
            return 0
        pruned: int = self._read(_PRUNE, expired_before, limit)[0][0]
        return pruned

    def health(self) -> StoreHealth:
        """Engine, size (by counts that each commit keeps up to date), and what looks wrong."""
        return self._connections.run(lambda session: read_health(session, self._connections.location))

    def close(self) -> None:
        """Close every connection; one that is in use closes when its operation ends."""
        self._connections.close()

    def _read(self, statement: LiteralString, *parameters: object) -> list[TupleRow]:
        """One statement outside of any transaction."""
        return self._connections.run(lambda session: session.ask([(statement, parameters)])[0])


def _read_topology(session: Session) -> StoredTopology | None:
    return topology_from(dict(session.ask([(_TOPOLOGY, ())])[0]))


def _written(topology: StoredTopology) -> Query:
    values = asdict(topology)
    return _SET_META, (list(values), [int(value) for value in values.values()])
