"""Events of a partition from its checkpoint on: from the stream where it has them, else from the store's log.

A stream is a copy that may be trimmed, lost or tampered with. An entry counts when it is the very next
sequence and says so itself; from the first that does not, the store is asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.events import Event, decode_event
from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore

Row: TypeAlias = tuple[int, bytes]
"""A sequence and an encoded event."""

_LAST_SUFFIX = 2**64 - 1


class Gathered(Struct, frozen=True):
    """The next events of a partition, without a hole, and the sequence of the last one."""

    events: tuple[Event, ...]
    reached: int


class Bogus(Struct, frozen=True):
    """The stream holds entries of sequences that were never committed."""


class Lost(Struct, frozen=True):
    """Neither stream nor store has the next event: nothing says which Sessions changed."""


def read_streams(
    redis: Redis, positions: Mapping[PartitionId, int], *, count: int, block_ms: int
) -> dict[PartitionId, list[Row]]:
    """Entries past each partition's position, up to `count` each; waits `block_ms` when there are none."""
    by_key = {keys.events(partition).encode(): partition for partition in positions}
    # Past every id of the position's sequence: `<sequence>-1` is none of ours, and would come for ever.
    after = [f"{position}-{_LAST_SUFFIX}" for position in positions.values()]
    reply = redis.execute_command("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", *by_key, *after)
    return {by_key[key]: [_row(*entry) for entry in entries] for key, entries in _streams(reply)}


def gather(
    partition: PartitionId, after: int, rows: Sequence[Row], store: SidecarStore, limit: int
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
    stored = store.outcomes(partition, start, limit)
    missing = _run(partition, start, stored)
    if missing or (events and not stored):
        return Gathered((*events, *missing), start + len(missing))
    return Lost() if stored or head != after else Bogus()


def _run(partition: PartitionId, after: int, rows: Iterable[Row]) -> list[Event]:
    """The events of the leading rows that follow each other and are what their place says."""
    events: list[Event] = []
    for sequence, data in rows:
        expected = after + len(events) + 1
        if sequence != expected:
            break
        try:
            event = decode_event(data)
        except msgspec.MsgspecError:
            break
        if event.event_id != f"{partition}-{expected}":
            break
        events.append(event)
    return events


def _row(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Row:
    return int(entry_id.partition(b"-")[0]), fields.get(b"event", b"")


def _streams(reply: Any) -> Iterable[tuple[bytes, list[Any]]]:
    """XREAD's reply, which RESP2 gives as pairs and RESP3 as a map."""
    if not reply:
        return ()
    if not isinstance(reply, dict):
        return [(key, entries) for key, entries in reply]
    # RESP3 through redis-py wraps a stream's entries in one more list.
    return [
        (key, entries[0] if entries and isinstance(entries[0], list) else entries) for key, entries in reply.items()
    ]
