"""Events of a partition from its checkpoint on: from the stream where it has them, else from the store's log.

A stream is a copy that may be trimmed, lost or tampered with. An entry counts when it is the very next
sequence and says so itself; from the first that does not, the store is asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.event_streams import Row, past, row_of, sequence_of, streams_in
from feedback.events import Event, decode_event
from feedback.partitions import PartitionId
from feedback.scripting import Script
from persistence.sidecar.store import SidecarStore

_backlog = Script("projections", "backlog")

Rows: TypeAlias = dict[PartitionId, list[Row]]

ROUND_BYTES = 16 * 2**20
"""Bound on the events of one round, of all partitions, each counted with what it takes besides its bytes."""
_EVENT_ROOM = 64 * 1024
"""For what an event holds besides one note: ids, versions, times, actor."""
_OVERHEAD = 1024
_MOST_AT_ONCE = 256
_READ_ON_BYTES = 4 * 2**20
"""Of the streams that have more than what is taken of each at first, when they are few. Not more, since the server does
nothing else meanwhile."""


class Room(Struct, frozen=True):
    """How much may be taken of so many partitions, where every event may be as large as one gets."""

    partitions: int
    max_note_bytes: int
    whole: int
    """Bytes in all."""

    @classmethod
    def of_round(cls, partitions: int, max_note_bytes: int) -> "Room":
        """What a round may take."""
        return cls(partitions, max_note_bytes, ROUND_BYTES)

    def shared_by(self, behind: int) -> "Room":
        """What may be taken besides of so many of them: their own shares, or more where that is little."""
        return Room(behind, self.max_note_bytes, max(_READ_ON_BYTES, self.partition_bytes * behind))

    @property
    def partition_bytes(self) -> int:
        """A partition's share."""
        return self.whole // self.partitions

    @property
    def page(self) -> int:
        """So many events of each before looking at their size."""
        return min(_MOST_AT_ONCE, max(1, self.partition_bytes // (self.max_note_bytes + _EVENT_ROOM)))


class Gathered(Struct, frozen=True):
    """The next events of a partition, without a hole, and the sequence of the last one."""

    events: tuple[Event, ...]
    reached: int


class Bogus(Struct, frozen=True):
    """The stream holds entries of sequences that were never committed."""


class Lost(Struct, frozen=True):
    """Neither stream nor store has the next event: nothing says which Sessions changed."""


def read_streams(redis: Redis, positions: Mapping[PartitionId, int], *, room: Room, block_ms: int) -> Rows:
    """Entries past each partition's position, as many as there is room for; waits `block_ms` when there are none."""
    by_key = {keys.events(partition).encode(): partition for partition in positions}
    after = [past(position) for position in positions.values()]
    reply = redis.execute_command("XREAD", "COUNT", room.page, "BLOCK", block_ms, "STREAMS", *by_key, *after)
    rows = {by_key[key]: [row_of(*entry) for entry in entries] for key, entries in streams_in(reply)}
    behind = [partition for partition, found in rows.items() if len(found) >= room.page]
    return _read_on(redis, rows, behind, room) if behind else rows


def _read_on(redis: Redis, rows: Rows, partitions: Sequence[PartitionId], room: Room) -> Rows:
    """More of these partitions' streams. XREAD counts entries, so it may only take as many as can be giants."""
    names = [keys.events(partition) for partition in partitions]
    after = [past(rows[partition][-1].sequence) for partition in partitions]
    shared = room.shared_by(len(partitions))
    more = _backlog(redis, names, (shared.whole, _OVERHEAD, shared.page, *after))
    for partition, entries in zip(partitions, more, strict=True):
        ids, events = entries[::2], entries[1::2]
        rows[partition] += [Row(sequence_of(entry_id), event) for entry_id, event in zip(ids, events, strict=True)]
    return rows


def last_sequences(redis: Redis, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
    """The last sequence in each partition's stream, 0 where there is none."""
    pipeline = redis.pipeline(transaction=False)
    for partition in partitions:
        pipeline.execute_command("XREVRANGE", keys.events(partition), "+", "-", "COUNT", 1)
    newest = zip(partitions, pipeline.execute(), strict=True)
    return {partition: sequence_of(entries[0][0]) if entries else 0 for partition, entries in newest}


def gather(
    partition: PartitionId, after: int, rows: Sequence[Row], store: SidecarStore, room: Room
) -> Gathered | Bogus | Lost:
    """The events that follow sequence `after`, given what the stream has past it.

    Raises:
        StoreUnavailable: the store was needed and could not be read.
    """
    events = _run(partition, after, rows)
    if len(events) == len(rows) and rows:
        return Gathered(tuple(events), after + len(events))
    start = after + len(events)
    # The head first, so that a commit in between cannot look like a hole.
    head = store.heads([partition])[partition]
    stored = _outcomes(store, partition, start, room)
    missing = _run(partition, start, stored)
    if missing or (events and not stored):
        return Gathered((*events, *missing), start + len(missing))
    return Lost() if stored or head != after else Bogus()


def _outcomes(store: SidecarStore, partition: PartitionId, after: int, room: Room) -> list[Row]:
    """What the store recorded past a sequence, page by page, as much as there is room for."""
    rows: list[Row] = []
    left = room.partition_bytes
    while left > 0:
        page = store.outcomes(partition, after, room.page)
        rows += [Row(*one) for one in page]
        if len(page) < room.page:
            break
        after = page[-1][0]
        left -= sum(len(event) + _OVERHEAD for _, event in page)
    return rows


def _run(partition: PartitionId, after: int, rows: Iterable[Row]) -> list[Event]:
    """The events of the leading rows that follow each other and are what their place says."""
    events: list[Event] = []
    prefix = f"{partition}-"
    for sequence, data in rows:
        expected = after + len(events) + 1
        if sequence != expected:
            break
        try:
            event = decode_event(data)
        except msgspec.MsgspecError:
            break
        if event.event_id != f"{prefix}{expected}":
            break
        events.append(event)
    return events
