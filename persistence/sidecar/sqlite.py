"""The embedded engine: one SQLite file, any number of threads and processes of one machine."""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import msgspec

from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar import schema
from persistence.sidecar.sqlite_connections import SqliteConnections
from persistence.sidecar.sqlite_transaction import SqliteTransaction, find_record, find_session, is_recorded, item_from
from persistence.sidecar.sqlite_wal import WriteAheadLog
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

_TOPOLOGY = """SELECT name, value FROM meta
               WHERE name IN ('generation', 'partitions', 'former', 'retired', 'deployment')"""
_SET_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
_RETIRE = "UPDATE fence SET epoch = epoch + 1, owner = 'retired' WHERE generation < ?"
_RAISE_EPOCH = """INSERT INTO fence (generation, partition, epoch, owner, sequence) VALUES (?, ?, 1, ?, 0)
                  ON CONFLICT (generation, partition) DO UPDATE SET epoch = epoch + 1, owner = excluded.owner
                  RETURNING epoch, sequence"""
_HEAD = "SELECT sequence FROM fence WHERE generation = ? AND partition = ?"
_OUTCOMES = """SELECT sequence, event FROM command
               WHERE generation = ? AND partition = ? AND sequence > ? ORDER BY sequence LIMIT ?"""
# Stretch by stretch (see the index), from the first number that is not forgotten; events only of what is asked for.
_HISTORY = """WITH RECURSIVE stretch (generation, partition, number, last) AS (
                  SELECT generation, partition, (
                      SELECT min(sequence) >> 11 FROM command
                      WHERE command.generation = fence.generation AND command.partition = fence.partition
                  ), sequence >> 11
                  FROM fence WHERE (generation, partition) >= (?1, ?2)
                  UNION ALL
                  SELECT generation, partition, number + 1, last FROM stretch WHERE number < last
              ), found AS (
                  SELECT command.generation, command.partition, command.sequence
                  FROM stretch CROSS JOIN command INDEXED BY command_history
                      ON command.generation = stretch.generation AND command.partition = stretch.partition
                      AND command.sequence >> 11 = stretch.number AND command.session = ?4
                  WHERE (command.generation, command.partition, command.sequence) > (?1, ?2, ?3)
                  ORDER BY 1, 2, 3 LIMIT ?5
              )
              SELECT generation, partition, sequence, applied_at, event
              FROM found CROSS JOIN command USING (generation, partition, sequence) ORDER BY 1, 2, 3"""
# One statement, hence one snapshot; a Session without items gives one row of NULLs.
_FEEDBACK = """SELECT session.created_at, cwd, revision, position,
                      message_id, rating, note, version, item.created_at, updated_at
               FROM session LEFT JOIN item ON item.session = session.key
               WHERE session.id = ?"""
_SESSION_IDS = "SELECT key, id FROM session WHERE key > ? ORDER BY key LIMIT ?"
_ANY_EXPIRED = "SELECT 1 FROM command WHERE expires_at < ? LIMIT 1"
_PRUNE = """DELETE FROM command WHERE (generation, partition, sequence) IN (
                SELECT generation, partition, sequence FROM command
                WHERE expires_at < ? ORDER BY expires_at LIMIT ?)"""
_COUNT_PRUNED = "UPDATE meta SET value = value - ? WHERE name = 'commands'"
# What fences have added, and what `meta` holds: counted before fences did, or without one, less what was pruned.
_COUNTS = """SELECT (SELECT value FROM meta WHERE name = 'sessions') + coalesce(sum(sessions), 0),
                    (SELECT value FROM meta WHERE name = 'items') + coalesce(sum(items), 0),
                    (SELECT value FROM meta WHERE name = 'commands') + coalesce(sum(commands), 0)
             FROM fence"""


class SqliteStore:
    """`SidecarStore` in one SQLite file with a write-ahead log; see the protocol for the promises.

    What a transaction committed is on stable storage (`synchronous=FULL`: one sync of the WAL a commit).

    Not to be used in a child process after a fork: open another one there.
    """

    _durable: ClassVar[bool] = True

    def __init__(self, path: Path, *, busy_timeout: float = 5.0) -> None:
        """Open the store, making the file (never its directory) where there is none.

        `busy_timeout`: how long to wait for other writers, in seconds, before `StoreUnavailable`.

        Raises:
            StoreForeign: not a SQLite database, another program's, or a newer schema. Nothing was changed in it.
            StoreUnavailable: it cannot be opened, read, locked or written; with path and reason.
        """
        self._connections = SqliteConnections(path, busy_timeout, durable=self._durable)
        self._log = WriteAheadLog(self._connections, durable=self._durable)

    @staticmethod
    def in_memory() -> "SqliteStore":
        """A store for tests, which is gone when it is closed; what it commits stays in the system's page cache."""
        return _VolatileStore()

    def topology(self) -> StoredTopology | None:
        """The deployment's topology, or None in a new store."""
        with self._connections.lease() as connection:
            return _read_topology(connection)

    def set_topology(self, topology: StoredTopology, *, replacing: StoredTopology | None) -> bool:
        """Compare-and-set; False when the stored one is not `replacing`."""
        with self._writing() as connection:
            if _read_topology(connection) != replacing:
                return False
            connection.executemany(_SET_META, msgspec.structs.asdict(topology).items())
            return True

    def retire(self, topology: StoredTopology) -> None:
        """Mark the former generation retired and fence its last owners off, in one transaction."""
        retired = msgspec.structs.replace(topology, retired=True)
        with self._writing() as connection:
            if _read_topology(connection) in {topology, retired}:
                connection.executemany(_SET_META, msgspec.structs.asdict(retired).items())
                connection.execute(_RETIRE, (topology.generation,))

    def acquire_fences(self, partitions: Sequence[PartitionId], owner: str) -> dict[PartitionId, Fence]:
        """Raise each partition's epoch by one, durably, in one transaction."""
        fences = {}
        with self._writing() as connection:
            topology = _read_topology(connection)
            for partition in partitions:
                if not serves(topology, partition):
                    continue
                row = (partition.generation, partition.number, owner)
                fences[partition] = Fence(*connection.execute(_RAISE_EPOCH, row).fetchone())
        return fences

    @contextlib.contextmanager
    def transaction(self, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        """Open a fenced transaction; it holds the database's write lock from here on.

        Raises:
            PartitionsFenced: a stored epoch is not the given one.
        """
        with self._writing() as connection:
            transaction = SqliteTransaction(connection, epochs)
            try:
                yield transaction
            finally:
                transaction.end()

    def heads(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """The last committed sequence of each partition (0: none)."""
        heads = {}
        with self._reading() as connection:
            for partition in partitions:
                row = connection.execute(_HEAD, (partition.generation, partition.number)).fetchone()
                heads[partition] = 0 if row is None else row[0]
        return heads

    def outcomes(self, partition: PartitionId, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Recorded (sequence, event) pairs of a partition past `after`, ascending."""
        with self._connections.lease() as connection:
            return connection.execute(_OUTCOMES, (partition.generation, partition.number, after, limit)).fetchall()

    def history(self, session_id: str, after: HistoryPosition, limit: int) -> list[RecordedOutcome]:
        """Recorded outcomes of a Session past `after`, in commit order."""
        with self._connections.lease() as connection:
            rows = connection.execute(_HISTORY, (*after, session_id, limit)).fetchall()
        return [RecordedOutcome(PartitionId(generation, number), *rest) for generation, number, *rest in rows]

    def record(self, command_id: str) -> CommandRecord | None:
        """One command's record."""
        with self._connections.lease() as connection:
            return find_record(connection, command_id)

    def recorded(self, command_ids: Sequence[str]) -> set[str]:
        """Those of these commands that have a record."""
        with self._reading() as connection:
            return {command_id for command_id in command_ids if is_recorded(connection, command_id)}

    def feedback(self, session_id: str) -> SessionFeedback | None:
        """A Session's feedback, of whatever identity is stored."""
        with self._connections.lease() as connection:
            rows = connection.execute(_FEEDBACK, (session_id,)).fetchall()
        if not rows:
            return None
        created_at, cwd, revision = rows[0][:3]
        stored = [row for row in rows if row[3] is not None]
        stored.sort(key=itemgetter(3))
        items = tuple(item_from(row[4:]) for row in stored)
        return SessionFeedback(session_id, SessionIdentity(created_at=created_at, cwd=cwd), revision, items)

    def stored_sessions(self, session_ids: Sequence[str]) -> dict[str, StoredSession]:
        """The rows of these Sessions, those that exist."""
        stored = {}
        with self._reading() as connection:
            for session_id in session_ids:
                if (found := find_session(connection, session_id)) is not None:
                    stored[session_id] = found[1]
        return stored

    def session_ids(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Sessions past a place, in the order in which they were first stored."""
        with self._connections.lease() as connection:
            return connection.execute(_SESSION_IDS, (after, limit)).fetchall()

    def prune(self, *, expired_before: int, limit: int) -> int:
        """Forget up to `limit` command records whose `expires_at` is earlier, the earliest first; how many went."""
        with self._connections.lease() as connection:
            if connection.execute(_ANY_EXPIRED, (expired_before,)).fetchone() is None:
                return 0
        with self._writing() as connection:
            pruned = connection.execute(_PRUNE, (expired_before, limit)).rowcount
            connection.execute(_COUNT_PRUNED, (pruned,))
            return pruned

    def health(self) -> StoreHealth:
        """Engine, size (by counts that each commit keeps up to date), and what looks wrong."""
        with self._reading() as connection:
            counts: tuple[int, int, int] = connection.execute(_COUNTS).fetchone()
            version = schema.stored_version(connection, self._connections.location)
            findings = list(_inconsistent_partitions(connection))
        findings += self._log.findings()
        engine = f"SQLite {sqlite3.sqlite_version}"
        location = self._connections.location
        return StoreHealth(engine, location, version, *counts, tuple(findings))

    def close(self) -> None:
        """Close every connection; one that is in use closes when its operation ends."""
        self._connections.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One snapshot for several statements."""
        with self._connections.lease() as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: committed when the block ends, rolled back (by the lease) when it raises."""
        with self._connections.lease(writing=True) as connection:
            self._connections.begin_writing(connection)
            changes = connection.total_changes
            yield connection
            self._log.make_room()
            connection.execute("COMMIT")
            changes = connection.total_changes - changes
        self._log.committed(changes)


class _VolatileStore(SqliteStore):
    """Its own temporary directory, no syncs; everything else is the real engine."""

    _durable = False

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="feedback-sidecar-")
        super().__init__(Path(self._directory.name) / "sidecar.sqlite3")

    def close(self) -> None:
        super().close()
        self._directory.cleanup()


def _read_topology(connection: sqlite3.Connection) -> StoredTopology | None:
    return topology_from(dict(connection.execute(_TOPOLOGY).fetchall()))


def _inconsistent_partitions(connection: sqlite3.Connection) -> Iterator[str]:
    """A record past its partition's last sequence: somebody wrote around the fence."""
    for generation, number, sequence in connection.execute("SELECT generation, partition, sequence FROM fence"):
        beyond = connection.execute(_OUTCOMES, (generation, number, sequence, 1)).fetchone()
        if beyond is not None:
            yield f"partition {generation}-{number}: record {beyond[0]} lies past the last sequence {sequence}"
