"""Importing, the decisions: what of a medium's rows is new to the store. Pure: no clock, no I/O.

An item is *newer* when its `updatedAt` is later; of two with the same one, what is stored stays. A deletion is newer
than what was updated before it. Of two lives of one Session the one that began later is newer, unless something that is
stored was updated, or something deleted there, after all that is imported. What was imported once is not imported again
for as long as its record is kept: it stands, or was changed or deleted since.

**Where the history ends**, an item that is not here may have been deleted, or never have been here. It is taken only
when no deletion of it can have been forgotten: what a user deleted is not brought back.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from feedback.events import FeedbackPut, encode_event
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.interchange.past import Past
from persistence.interchange.rows import Row
from persistence.sidecar.store import Change, CommandRecord, PutItem, SessionFeedback, StartSession

_NAMESPACE = UUID("0b0f3a0e-7d5c-4d3b-9f5e-6f2b1c9a4e87")
_SIZE_OF_ITEM = 256


class Part(Struct, frozen=True):
    """Some items of a row, few enough for one transaction; `newest` is the latest `updatedAt` of the whole row (-1: it
    has no items)."""

    session_id: str
    identity: SessionIdentity
    items: tuple[Item, ...]
    newest: int

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return sum(map(_size, self.items))


class Plan(Struct, frozen=True):
    """What is to be written of a part, and how many items have which fate."""

    part: Part
    starts: bool
    """A row is to be made, or to begin another life."""
    puts: tuple[Item, ...]
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    kept: int = 0
    """What is stored is newer, or it was here before and changed or deleted since, or may have been."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing has to be written."""
        return not (self.starts or self.puts)


def parts_of(row: Row, most_items: int, most_bytes: int) -> Iterator[Part]:
    """The row in parts of at most so many items, and of so many bytes, roughly, or of one item."""
    newest = _newest(row.items)
    begin = held = 0
    for place, item in enumerate(row.items):
        size = _size(item)
        if place > begin and (place - begin >= most_items or held + size > most_bytes):
            yield Part(row.session_id, row.identity, row.items[begin:place], newest)
            begin, held = place, 0
        held += size
    if begin < len(row.items) or not row.items:
        yield Part(row.session_id, row.identity, row.items[begin:], newest)


def doubtful(part: Part, stored: SessionFeedback | None) -> Sequence[Item]:
    """Items that would be written unless they were here before: whether they were has to be looked up."""
    if stored is None:
        return ()  # a Session's row stays for ever, so nothing of it was
    if stored.identity != part.identity:
        return part.items if _begins_later(part, stored) else ()
    known = {item.message_id: item for item in stored.items}
    return [item for item in part.items if _is_newer(item, known.get(item.message_id))]


def outdated(part: Part, stored: SessionFeedback, past: Past, known_since: int) -> set[str]:
    """The message ids of those `doubtful` items that a deletion is newer than, or may be: every deletion since
    `known_since` (milliseconds since the Unix epoch) is in the history, an earlier one may be forgotten."""
    unsure = doubtful(part, stored)
    if stored.identity != part.identity:
        if past.last_deletion(stored.identity) > part.newest:
            return {item.message_id for item in unsure}
        return {item.message_id for item in unsure if past.outdates(part.identity, item)}
    here = {item.message_id for item in stored.items}
    whole = past.is_whole(stored)
    return {
        item.message_id
        for item in unsure
        if past.outdates(part.identity, item)
        or (item.message_id not in here and item.updated_at < known_since and not whole)
    }


def plan(part: Part, stored: SessionFeedback | None, gone: Collection[str]) -> Plan:
    """Decide on a part; `gone` has the message ids of the `doubtful` items that were imported before, or are
    `outdated`."""
    if stored is None:
        return Plan(part, starts=True, puts=part.items, added=len(part.items))
    fresh = {one.message_id for one in doubtful(part, stored)}.difference(gone)
    if stored.identity != part.identity:
        # A life that was here, and was replaced, does not come back.
        if len(part.items) > len(fresh) or not fresh:
            return Plan(part, starts=False, puts=(), kept=len(part.items))
        return Plan(part, starts=True, puts=part.items, added=len(part.items))
    known = {item.message_id: item for item in stored.items}
    puts = tuple(item for item in part.items if item.message_id in fresh)
    added = sum(item.message_id not in known for item in puts)
    unchanged = sum(known.get(item.message_id) == item for item in part.items)
    return Plan(
        part,
        starts=False,
        puts=puts,
        added=added,
        updated=len(puts) - added,
        unchanged=unchanged,
        kept=len(part.items) - len(puts) - unchanged,
    )


def import_id(session_id: str, identity: SessionIdentity, item: Item) -> str:
    """The command id under which an item is imported: the same for the same item, however often and wherever from."""
    return str(uuid5(_NAMESPACE, _payload(session_id, identity, item).decode()))


class Numbering(Struct, frozen=True, kw_only=True):
    """Where a transaction begins: epochs and last sequences by partition, revisions by Session; times in ms."""

    partition_of: Callable[[str], PartitionId]
    epochs: Mapping[PartitionId, int]
    sequences: Mapping[PartitionId, int]
    revisions: Mapping[str, int]
    now_ms: int
    expires_at: int
    actor: str | None


def written(plans: Iterable[Plan], numbering: Numbering) -> tuple[list[Change], list[CommandRecord]]:
    """The changes that plans come to, in order, and a record with its event for each item that is put."""
    changes: list[Change] = []
    records: list[CommandRecord] = []
    revisions, sequences = dict(numbering.revisions), dict(numbering.sequences)
    for one in plans:
        session_id, partition = one.part.session_id, numbering.partition_of(one.part.session_id)
        if one.starts:
            changes.append(StartSession(session_id, one.part.identity))
        for item in one.puts:
            revisions[session_id] = revisions.get(session_id, 0) + 1
            sequences[partition] += 1
            changes.append(PutItem(session_id, item, revisions[session_id]))
            event = FeedbackPut(
                event_id=f"{partition}-{sequences[partition]}",
                command_id=import_id(session_id, one.part.identity, item),
                session_id=session_id,
                session=one.part.identity,
                revision=revisions[session_id],
                message_id=item.message_id,
                actor=numbering.actor,
                occurred_at=numbering.now_ms,
                partition=partition.number,
                epoch=numbering.epochs[partition],
                item=item,
            )
            records.append(_record(event, partition, sequences[partition], numbering.expires_at))
    return changes, records


def _record(event: FeedbackPut, partition: PartitionId, sequence: int, expires_at: int) -> CommandRecord:
    assert event.session is not None
    return CommandRecord(
        command_id=event.command_id,
        partition=partition,
        sequence=sequence,
        session_id=event.session_id,
        digest=hashlib.sha256(_payload(event.session_id, event.session, event.item)).digest(),
        event=encode_event(event),
        applied_at=event.occurred_at,
        expires_at=expires_at,
    )


def _payload(session_id: str, identity: SessionIdentity, item: Item) -> bytes:
    return msgspec.json.encode((session_id, identity, item))


def _begins_later(part: Part, stored: SessionFeedback) -> bool:
    """Whether a part is of a later life than the one that is stored, and nothing stored is newer than its row."""
    later = part.identity.created_at > stored.identity.created_at
    return bool(part.items) and later and _newest(stored.items) <= part.newest


def _is_newer(item: Item, stored: Item | None) -> bool:
    return stored is None or item.updated_at > stored.updated_at


def _size(item: Item) -> int:
    return _SIZE_OF_ITEM + len(item.message_id) + len(item.note or "")


def _newest(items: Iterable[Item]) -> int:
    return max((item.updated_at for item in items), default=-1)
