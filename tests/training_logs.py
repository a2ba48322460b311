"""A store with ratings, and the Session logs that they are about: many, in little time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from feedback.events import FeedbackPut, encode_event
from feedback.model import Item, Rating, SessionIdentity
from feedback.partitions import PartitionId
from persistence.session_log import jsontext
from persistence.session_log.events import Event, exchange
from persistence.session_log.layout import project_dir, session_segment
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import Change, CommandRecord, PutItem, StartSession

CREATED_AT = 1_700_000_000_000
PARTITION = PartitionId(1, 0)


def identity(cwd: str | None = "/w", created_at: int = CREATED_AT) -> SessionIdentity:
    return SessionIdentity(created_at=created_at, cwd=cwd)


def write_log(root: Path, session_id: str, events: Sequence[Event], *, of: SessionIdentity) -> Path:
    """A raw log of format 0 at fixed times, without the syncs of a writer."""
    header = {"type": "session", "version": 0, "id": session_id, "createdAt": of.created_at}
    header |= {"cwd": of.cwd} if of.cwd else {}
    rows: list[Mapping[str, object]] = [header | {"delegationDepth": 0}]
    for seq, event in enumerate(events):
        rows.append({"type": event["type"], "seq": seq, "time": CREATED_AT + seq, **event})
    path = root / project_dir(of.cwd) / session_segment(session_id) / "session.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(jsontext.encode(row) + b"\n" for row in rows))
    return path


def conversation(turns: int, words: str = "yes") -> list[Event]:
    """So many questions; the answers are `a1`, `a2` and so on."""
    return [
        event
        for turn in range(1, turns + 1)
        for event in exchange(turn, f"Question {turn}?", words, user_id=f"u{turn}", assistant_id=f"a{turn}")
    ]


def item(message_id: str, rating: Rating = "positive", *, at: int = CREATED_AT, note: str | None = None) -> Item:
    return Item(message_id=message_id, rating=rating, note=note, version=str(uuid4()), created_at=at, updated_at=at + 1)


class Ratings:
    """Commits items as a worker does: rows, and the events that say who."""

    def __init__(self, store: SidecarStore) -> None:
        self._store = store
        self._epochs = {PARTITION: store.acquire_fences([PARTITION], "test")[PARTITION].epoch}
        self._changes: list[Change] = []
        self._records: list[CommandRecord] = []
        self._sequence = 0

    def rate(self, session_id: str, of: SessionIdentity, *items: Item, actor: str | None = None) -> None:
        """More items of a Session, which are its first ones if it has none yet."""
        if not any(isinstance(change, StartSession) and change.session_id == session_id for change in self._changes):
            self._changes.append(StartSession(session_id, of))
        for rated in items:
            self._sequence += 1
            self._changes.append(PutItem(session_id, rated, self._sequence))
            self._records.append(self._record(session_id, of, rated, actor))

    def commit(self) -> None:
        """All of them, in one transaction."""
        with self._store.transaction(self._epochs) as transaction:
            transaction.apply(self._changes, self._records, {})

    def _record(self, session_id: str, of: SessionIdentity, rated: Item, actor: str | None) -> CommandRecord:
        event = FeedbackPut(
            event_id=f"1-0-{self._sequence}",
            command_id=str(uuid4()),
            session_id=session_id,
            session=of,
            revision=self._sequence,
            message_id=rated.message_id,
            actor=actor,
            occurred_at=rated.updated_at,
            partition=0,
            epoch=1,
            item=rated,
        )
        return CommandRecord(
            command_id=event.command_id,
            partition=PARTITION,
            sequence=self._sequence,
            session_id=session_id,
            digest=b"digest",
            event=encode_event(event),
            applied_at=rated.updated_at,
            expires_at=2**50,
        )
