"""Rows of the PostgreSQL tables as the protocol's values, and values as the columns of array parameters."""

from collections.abc import Iterable

from psycopg.rows import TupleRow

from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar.postgres_text import decoded, text_of
from persistence.sidecar.store import CommandRecord, StoredSession

_HYPHENS = (8, 12, 16, 20)


def id_bytes(command_id: str) -> bytes:
    """A command id's 16 bytes, without the detour over a `UUID`."""
    return bytes.fromhex(command_id.replace("-", ""))


def id_text(data: bytes) -> str:
    """A command id as the contract spells it."""
    digits = data.hex()
    return "-".join(digits[start:end] for start, end in zip((0, *_HYPHENS), (*_HYPHENS, None), strict=True))


def columns(rows: Iterable[tuple[object, ...]]) -> tuple[list[object], ...]:
    """Rows, of which there must be some, as one array per column, for `unnest`."""
    return tuple(list(column) for column in zip(*rows, strict=True))


def item_from(row: TupleRow) -> Item:
    """(message, long_message, rating, note, version, created_at, updated_at) as the contract's Item."""
    message, long_message, rating, note, version, created_at, updated_at = row
    return Item(
        message_id=text_of(message, long_message),
        rating="positive" if rating == "positive" else "negative",
        note=None if note is None else decoded(note),
        version=decoded(version),
        created_at=created_at,
        updated_at=updated_at,
    )


def session_from(row: TupleRow) -> StoredSession:
    """(created_at, cwd, revision) as a Session's row."""
    created_at, cwd, revision = row
    return StoredSession(SessionIdentity(created_at=created_at, cwd=None if cwd is None else decoded(cwd)), revision)


def record_from(row: TupleRow) -> CommandRecord:
    """(generation, partition, sequence, id, session, long_session, digest, event, applied_at, expires_at)."""
    generation, number, sequence, command_id, session, long_session, digest, event, applied_at, expires_at = row
    return CommandRecord(
        command_id=id_text(command_id),
        partition=PartitionId(generation, number),
        sequence=sequence,
        session_id=text_of(session, long_session),
        digest=digest,
        event=event,
        applied_at=applied_at,
        expires_at=expires_at,
    )
