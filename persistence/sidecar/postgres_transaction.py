"""One fenced write transaction on PostgreSQL: two round trips, one to gather and one to write and commit.

**Why READ COMMITTED is enough.** The first statement locks the fence rows of the batch's partitions, in one order for
everybody, and what it returns is their latest committed state. Whoever else writes about these partitions' Sessions, or
raises their epochs, needs the same locks: so from here to the commit nobody does, and the epochs are compared with
what will still hold then. Every later statement reads a snapshot of its own, taken after the locks were granted;
PostgreSQL makes a commit visible before it lets its locks go, so that snapshot has all that the last owner
committed. REPEATABLE READ would take its snapshot before the wait for the lock, and fail at each takeover.

What two partitions may both have to do with is made safe by itself: a command id by its unique index, the records
that a batch answers from by a lock that `prune` respects, a new Session's place by the row that counts them.

**Nothing is answered that could be lost.** Locking the fence rows gives the transaction an id, so also one that only
finds records of earlier commits ends with a commit of its own, and that waits, as any other, until the
server's log is on disk up to here (and on the synchronous standby, where there is one). With it are the
commits that it answers from, also those whose own answers got lost.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import LiteralString

from psycopg.rows import TupleRow

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.sidecar.folding import fold
from persistence.sidecar.numbering import follow
from persistence.sidecar.postgres_connections import PostgresConnections
from persistence.sidecar.postgres_rows import columns, id_bytes, item_from, record_from, session_from
from persistence.sidecar.postgres_schema import SLOTS
from persistence.sidecar.postgres_session import Query, Session
from persistence.sidecar.postgres_text import key_of
from persistence.sidecar.postgres_writes import write_changes, write_deadlines, write_expired, write_records
from persistence.sidecar.store import Change, CommandRecord, PartitionsFenced, Snapshot, StoredSession

_FENCES: LiteralString = """
    SELECT generation, partition, epoch, sequence FROM fence
    WHERE (generation, partition) IN (SELECT * FROM unnest(%b::bigint[], %b::bigint[]))
    ORDER BY generation, partition FOR NO KEY UPDATE OF fence"""
# What `prune` must not take away before the batch has given it a later deadline.
_RECORDS: LiteralString = """
    SELECT generation, partition, sequence, id, session, long_session, digest, event, applied_at, expires_at
    FROM command WHERE id = ANY (%b::bytea[]) FOR KEY SHARE"""
_SESSIONS: LiteralString = "SELECT id, created_at, cwd, revision FROM session WHERE id = ANY (%b::bytea[])"
_ITEMS: LiteralString = """
    SELECT item.session, item.message, long_message, rating, note, version, created_at, updated_at
    FROM unnest(%b::bytea[], %b::bytea[]) AS wanted (session, message)
    JOIN item ON item.session = wanted.session AND item.message = wanted.message"""


class PostgresTransaction:
    """`StoreTransaction`; it begins with the first `load` or `apply`. See the protocol for the promises."""

    def __init__(self, connections: PostgresConnections, epochs: Mapping[PartitionId, int]) -> None:
        connections.check_open()
        self._connections = connections
        self._epochs = epochs
        self._held = contextlib.ExitStack()
        self._session: Session | None = None
        self._ended = False
        self._sequences: dict[PartitionId, int] = {}
        self._sessions: dict[str, StoredSession] = {}
        self._looked_up: set[str] = set()

    def load(self, command_ids: Sequence[str], targets: Sequence[tuple[str, str]]) -> Snapshot:
        """Gather records, Session rows and items for these command ids and (session id, message id) pairs."""
        self._check_open()
        queries: list[Query] = []
        if command_ids:
            queries.append((_RECORDS, ([id_bytes(command_id) for command_id in command_ids],)))
        session_ids = {key_of(session_id): session_id for session_id, _ in targets}
        wanted = {
            (key_of(session_id), key_of(message_id)): (session_id, message_id) for session_id, message_id in targets
        }
        if targets:
            queries.append((_SESSIONS, (list(session_ids),)))
            queries.append((_ITEMS, columns(wanted)))
        answers = self._ask(queries)
        records = [record_from(row) for row in (answers.pop(0) if command_ids else ())]
        sessions, items = answers or ((), ())
        self._note_sessions(session_ids, sessions)
        return Snapshot(
            {record.command_id: record for record in records},
            {name: self._sessions[name] for name in session_ids.values() if name in self._sessions},
            {wanted[row[0], row[1]]: item_from(row[1:]) for row in items},
        )

    def apply(self, changes: Sequence[Change], records: Sequence[CommandRecord], deadlines: Mapping[str, int]) -> None:
        """Send changes, records, sequences and deadlines; what the server thinks of them is heard at the commit.

        Raises:
            PartitionsFenced: the first record of a partition does not follow what is stored; a stored epoch is not
                the given one, where nothing was loaded before.
            ValueError: a later record out of sequence, or one of a partition that this transaction is not fenced
                for; a change of a Session without a row.
        """
        self._check_open()
        session = self._session_to_write(changes)
        outcomes = [record for record in records if not record.is_expired]
        follow(outcomes, self._sequences)
        folded = fold(changes, self._sessions)
        slot = min((partition.number for partition in self._epochs), default=0) % SLOTS
        with self._connections.guard(session):
            write_changes(session, folded, slot)
            write_records(session, outcomes, slot)
            write_expired(session, [record for record in records if record.is_expired], slot)
            write_deadlines(session, deadlines)
            session.flush()
        self._sessions |= {**folded.started, **folded.changed}
        reach(CrashPoint.INSIDE_COMMIT)

    def commit(self) -> None:
        """Commit what was applied; one that did nothing only has its fence checked.

        Raises:
            PartitionsFenced: as `apply`.
            ValueError: a command id is recorded already.
            StoreUnavailable: nothing was committed, or it cannot be known.
        """
        if self._session is None and self._epochs:
            self._ask(())
        if self._session is not None:
            with self._connections.guard(self._session):
                self._session.ask_and_commit()

    def end(self) -> None:
        """The connection goes back: nothing may be read or written through this object any more."""
        self._ended = True
        self._held.close()

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the transaction has ended")

    def _ask(self, queries: Sequence[Query]) -> list[list[TupleRow]]:
        """The rows of these reads, in one round trip; it begins the transaction where that has not begun."""
        if self._session is not None:
            with self._connections.guard(self._session):
                return self._session.ask(queries)
        # Nothing was written yet: the same may be asked again.
        return self._connections.persistently(lambda: self._begin(queries))

    def _begin(self, queries: Sequence[Query]) -> list[list[TupleRow]]:
        partitions = [(partition.generation, partition.number) for partition in self._epochs]
        fences: list[Query] = [(_FENCES, columns(partitions))] if partitions else []
        with contextlib.ExitStack() as held:
            session = held.enter_context(self._connections.lease(writing=True))
            begun, *answers = session.ask([("BEGIN", ()), *fences, *queries])
            self._check_fences(answers.pop(0) if fences else begun)
            self._session = session
            self._held = held.pop_all()
            return answers

    def _check_fences(self, rows: Sequence[TupleRow]) -> None:
        found = {PartitionId(generation, number): rest for generation, number, *rest in rows}
        stale = [partition for partition, epoch in self._epochs.items() if found.get(partition, (None,))[0] != epoch]
        if stale:
            raise PartitionsFenced(stale)
        self._sequences = {partition: sequence for partition, (_, sequence) in found.items()}

    def _session_to_write(self, changes: Sequence[Change]) -> Session:
        """The connection; Sessions that were not loaded are looked up first, which takes a trip of its own."""
        unknown = {change.session_id for change in changes} - self._looked_up
        if unknown or self._session is None:
            session_ids = {key_of(session_id): session_id for session_id in unknown}
            answers = self._ask([(_SESSIONS, (list(session_ids),))] if unknown else ())
            self._note_sessions(session_ids, answers[0] if answers else ())
        assert self._session is not None
        return self._session

    def _note_sessions(self, session_ids: Mapping[bytes, str], rows: Sequence[TupleRow]) -> None:
        self._looked_up |= set(session_ids.values())
        for row in rows:
            self._sessions[session_ids[row[0]]] = session_from(row[1:])
