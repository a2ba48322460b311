"""Stores to import into and to export from, as the tests of interchange need them: no server, no worker."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4
from zlib import crc32

from feedback.events import FeedbackDeleted, FeedbackPut, encode_event
from feedback.model import Item, Rating, SessionIdentity
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.interchange.export import export
from persistence.interchange.media import Form
from persistence.interchange.rows import Found, Row
from persistence.sidecar import SidecarStore, SqliteStore
from persistence.sidecar.store import CommandRecord, DeleteItem, PutItem, SessionFeedback, StoredTopology
from worker.importing import Importer, ImportReport
from worker.turns import Turns

LIFE = SessionIdentity(created_at=1_700_000_000_000, cwd="/w")
NEXT_LIFE = SessionIdentity(created_at=1_700_000_000_001, cwd="/w")
NOON = datetime(2026, 8, 21, 12, 30)  # noqa: DTZ001 - local time, as the original's names have it
PARTITIONS = tuple(PartitionId(1, number) for number in range(4))

SETTINGS = Settings(max_note_bytes=8192)
NOW_MS = 1_900_000_000_000


def set_up(store: SidecarStore) -> SidecarStore:
    """Give a new store its topology, as a first worker does."""
    assert store.set_topology(StoredTopology(1, len(PARTITIONS), deployment=7), replacing=None)
    return store


@contextmanager
def fresh_store() -> Iterator[SidecarStore]:
    """A store that was set up, and holds nothing."""
    with closing(SqliteStore.in_memory()) as store:
        yield set_up(store)


def take_in(store: SidecarStore, found: Iterable[Found], *, check: bool = False, now_ms: int = NOW_MS) -> ImportReport:
    """Import without a server."""
    turns = Turns(store, None, SETTINGS)
    retention_ms = 1000 * SETTINGS.command_retention
    return Importer(store, turns, clock_ms=lambda: now_ms, retention_ms=retention_ms, actor="ada").run(
        found, check=check
    )


def rate(store: SidecarStore, session_id: str, rated: Item | str, *, at: int) -> None:
    """What a user's command comes to, committed as a worker does: an item that is put, or the id of the message whose
    item is deleted."""
    fences = store.acquire_fences(PARTITIONS, "a worker")
    place = PartitionId(1, crc32(session_id.encode()) % len(PARTITIONS))
    fence, session = fences[place], store.stored_sessions([session_id])[session_id]
    common: dict[str, Any] = {
        "event_id": f"{place}-{fence.sequence + 1}",
        "command_id": str(uuid4()),
        "session_id": session_id,
        "session": session.identity,
        "revision": session.revision + 1,
        "occurred_at": at,
        "partition": place.number,
        "epoch": fence.epoch,
    }
    change: PutItem | DeleteItem
    event: FeedbackPut | FeedbackDeleted
    if isinstance(rated, Item):
        change = PutItem(session_id, rated, session.revision + 1)
        event = FeedbackPut(message_id=rated.message_id, item=rated, **common)
    else:
        change = DeleteItem(session_id, rated, session.revision + 1)
        event = FeedbackDeleted(message_id=rated, **common)
    record = CommandRecord(
        command_id=event.command_id,
        partition=place,
        sequence=fence.sequence + 1,
        session_id=session_id,
        digest=b"",
        event=encode_event(event),
        applied_at=at,
        expires_at=at,
    )
    with store.transaction({partition: one.epoch for partition, one in fences.items()}) as transaction:
        transaction.apply([change], [record], {})


def exported(store: SidecarStore, path: Path) -> bytes:
    """The single document of all that is stored."""
    report = export(store, Form.JSON, path, overwrite=True, check=False, now=NOON)
    assert not report.refused
    return path.read_bytes()


def contents(store: SidecarStore) -> list[SessionFeedback | None]:
    """All feedback, in the order in which Sessions were first stored."""
    return [store.feedback(session_id) for _, session_id in store.session_ids(0, 10_000)]


def outcomes(store: SidecarStore) -> dict[PartitionId, list[tuple[int, bytes]]]:
    """Everything that was ever recorded."""
    return {partition: store.outcomes(partition, 0, 10_000) for partition in PARTITIONS}


def item(
    message_id: str,
    *,
    at: int = 1_800_000_000_000,
    rating: Rating = "positive",
    note: str | None = None,
    version: int = 1,
) -> Item:
    """An item last updated at this time, in a version that is named by a number."""
    text = str(UUID(int=version << 96 | 0x4000 << 64 | 0x8000 << 48))
    return Item(
        message_id=message_id, rating=rating, note=note, version=text, created_at=1_800_000_000_000, updated_at=at
    )


def row(session_id: str, *items: Item, life: SessionIdentity = LIFE) -> Row:
    return Row(session_id, life, items)


def counts(report: ImportReport) -> Sequence[int]:
    """Added, updated, unchanged, kept, refused."""
    return report.added, report.updated, report.unchanged, report.kept, report.refused
