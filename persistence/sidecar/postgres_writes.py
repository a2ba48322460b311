"""What a batch writes: at most one statement per table and kind of change, whatever the size of the batch."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from persistence.sidecar.folding import Folded
from persistence.sidecar.postgres_rows import columns, id_bytes
from persistence.sidecar.postgres_session import Session
from persistence.sidecar.postgres_text import key_of, long_of
from persistence.sidecar.store import CommandRecord

# The count of Sessions is the place of the last one: its row makes those who start some take turns until they
# have committed, so that places appear in their order.
_START: LiteralString = """
    WITH counted AS (UPDATE meta SET value = value + %s WHERE name = 'sessions' RETURNING value - %s AS before)
    INSERT INTO session (id, long_id, created_at, cwd, revision, place)
    SELECT id, long_id, created_at, cwd, revision, before + nth
    FROM counted, unnest(%b::bytea[], %b::bytea[], %b::bigint[], %b::bytea[], %b::bigint[])
        WITH ORDINALITY AS started (id, long_id, created_at, cwd, revision, nth)"""
_CHANGE: LiteralString = """
    UPDATE session SET created_at = changed.created_at, cwd = changed.cwd, revision = changed.revision
    FROM unnest(%b::bytea[], %b::bigint[], %b::bytea[], %b::bigint[]) AS changed (id, created_at, cwd, revision)
    WHERE session.id = changed.id"""
_EMPTY: LiteralString = """
    WITH gone AS (DELETE FROM item WHERE session = ANY (%b::bytea[]) RETURNING 1)
    UPDATE tally SET items = items - (SELECT count(*) FROM gone) WHERE slot = %s"""
_REMOVE: LiteralString = """
    WITH gone AS (
        DELETE FROM item USING unnest(%b::bytea[], %b::bytea[]) AS removed (session, message)
        WHERE item.session = removed.session AND item.message = removed.message RETURNING 1
    )
    UPDATE tally SET items = items - (SELECT count(*) FROM gone) WHERE slot = %s"""
# A row that was inserted, not updated, has no xmax.
_PUT: LiteralString = """
    WITH put AS (
        INSERT INTO item
            (session, message, long_message, position, rating, note, version, created_at, updated_at)
        SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[], %b::text[], %b::bytea[], %b::bytea[],
                             %b::bigint[], %b::bigint[])
        ON CONFLICT (session, message) DO UPDATE
        SET rating = excluded.rating, note = excluded.note, version = excluded.version,
            created_at = excluded.created_at, updated_at = excluded.updated_at
        RETURNING xmax = 0 AS is_new
    )
    UPDATE tally SET items = items + (SELECT count(*) FROM put WHERE is_new) WHERE slot = %s"""
_RECORD: LiteralString = """
    WITH recorded AS (
        INSERT INTO command (generation, partition, sequence, id, session, long_session, digest, event,
                             applied_at, expires_at)
        SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[],
                             %b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[])
        RETURNING 1
    )
    UPDATE tally SET commands = commands + (SELECT count(*) FROM recorded) WHERE slot = %s"""
# Whoever writes under a number holds the lock of its partition's fence.
_EXPIRE: LiteralString = """
    WITH recorded AS (
        INSERT INTO command (generation, partition, sequence, id, session, long_session, digest, event,
                             applied_at, expires_at)
        SELECT 0, expired.partition,
               row_number() OVER (PARTITION BY expired.partition)
               + coalesce((SELECT max(sequence) FROM command
                           WHERE generation = 0 AND command.partition = expired.partition), 0),
               id, session, long_session, digest, ''::bytea, applied_at, expires_at
        FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[])
            AS expired (partition, id, session, long_session, digest, applied_at, expires_at)
        RETURNING 1
    )
    UPDATE tally SET commands = commands + (SELECT count(*) FROM recorded) WHERE slot = %s"""
_ADVANCE: LiteralString = """
    UPDATE fence SET sequence = advanced.sequence
    FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[]) AS advanced (generation, partition, sequence)
    WHERE fence.generation = advanced.generation AND fence.partition = advanced.partition"""
_EXTEND: LiteralString = """
    UPDATE command SET expires_at = extended.expires_at
    FROM unnest(%b::bytea[], %b::bigint[]) AS extended (id, expires_at)
    WHERE command.id = extended.id AND command.expires_at < extended.expires_at"""


def write_changes(session: Session, folded: Folded, slot: int) -> None:
    """Send what is to become of Sessions and items; `slot` is the row that counts them."""
    if folded.started:
        rows = [
            (key_of(name), long_of(name), row.identity.created_at, _encoded(row.identity.cwd), row.revision)
            for name, row in folded.started.items()
        ]
        session.execute(_START, (len(rows), len(rows), *columns(rows)))
    if folded.changed:
        changed = [
            (key_of(name), row.identity.created_at, _encoded(row.identity.cwd), row.revision)
            for name, row in folded.changed.items()
        ]
        session.execute(_CHANGE, columns(changed))
    if folded.emptied:
        session.execute(_EMPTY, ([key_of(name) for name in folded.emptied], slot))
    if folded.removed:
        removed = [(key_of(name), key_of(message_id)) for name, message_id in folded.removed]
        session.execute(_REMOVE, (*columns(removed), slot))
    if folded.put:
        session.execute(_PUT, (*columns(_item_rows(folded)), slot))


def write_records(session: Session, records: Sequence[CommandRecord], slot: int) -> None:
    """Send records in their order, and the partitions' last sequences after them."""
    if not records:
        return
    rows = [
        (
            record.partition.generation,
            record.partition.number,
            record.sequence,
            id_bytes(record.command_id),
            key_of(record.session_id),
            long_of(record.session_id),
            record.digest,
            record.event,
            record.applied_at,
            record.expires_at,
        )
        for record in records
    ]
    session.execute(_RECORD, (*columns(rows), slot))
    heads = {record.partition: record.sequence for record in records}
    advanced = [(partition.generation, partition.number, sequence) for partition, sequence in heads.items()]
    session.execute(_ADVANCE, columns(advanced))


def write_expired(session: Session, records: Sequence[CommandRecord], slot: int) -> None:
    """Send records of expired commands, which follow those of their number (`EXPIRED` of the protocol)."""
    if records:
        rows = [
            (
                record.partition.number,
                id_bytes(record.command_id),
                key_of(record.session_id),
                long_of(record.session_id),
                record.digest,
                record.applied_at,
                record.expires_at,
            )
            for record in records
        ]
        session.execute(_EXPIRE, (*columns(rows), slot))


def write_deadlines(session: Session, deadlines: Mapping[str, int]) -> None:
    """Send later deadlines of records that exist."""
    if deadlines:
        session.execute(_EXTEND, columns((id_bytes(name), expires_at) for name, expires_at in deadlines.items()))


def _item_rows(folded: Folded) -> list[tuple[object, ...]]:
    return [
        (
            key_of(session_id),
            key_of(message_id),
            long_of(message_id),
            placed.position,
            placed.item.rating,
            _encoded(placed.item.note),
            placed.item.version.encode(),
            placed.item.created_at,
            placed.item.updated_at,
        )
        for (session_id, message_id), placed in folded.put.items()
    ]


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
