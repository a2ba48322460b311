"""Entries of the event streams as the server replies them (docs/wire-format.md, section 6)."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_LAST_SUFFIX = 2**64 - 1


class Row(NamedTuple):
    """A stream's entry: its sequence, and the event as it is encoded."""

    sequence: int
    data: bytes


def row_of(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Row:
    """An entry of a reply. One that bears no event has no bytes."""
    return Row(sequence_of(entry_id), fields.get(b"event", b""))


def sequence_of(entry_id: bytes) -> int:
    """The sequence that an entry's id stands for."""
    return int(entry_id.partition(b"-")[0])


def past(position: int) -> str:
    """Past every id of the position's sequence: `<sequence>-1` is none of ours, and would come for ever."""
    return f"{position}-{_LAST_SUFFIX}"


def streams_in(reply: Any) -> Iterable[tuple[bytes, list[Any]]]:
    """XREAD's reply, which RESP2 gives as pairs and RESP3 as a map."""
    if not reply:
        return ()
    if not isinstance(reply, dict):
        return [(key, entries) for key, entries in reply]
    # RESP3 through redis-py wraps a stream's entries in one more list.
    return [
        (key, entries[0] if entries and isinstance(entries[0], list) else entries) for key, entries in reply.items()
    ]
