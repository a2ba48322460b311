"""Which messages the model sees: appended ones, less those that a later one took the place of (FORMATS section 6)."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from persistence.session_log.damage import Misshapen

_NONE = -1
_NODE_BYTES = 40


class Surface:
    """The surface as one log builds it, by seqs; about 40 bytes a message, whatever the messages hold.

    A message that replaces others stands in the slot of the first of them. So slots stay in the surface's
    order, and each message is taken off once.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        """`most_bytes`: what it may take; no bound for who holds the messages themselves."""
        self._most_bytes = most_bytes
        # By message, in the order of the log:
        self._seqs = array("q")
        self._slots = array("q")
        self._replaced_by = array("q")
        # By slot, in the surface's order: the message that stands there, and the next slot that is taken.
        self._occupants = array("q")
        self._next = array("q")

    def append(self, seq: int) -> None:
        """Adds a message at the end. Raises Misshapen when there are more than there is room for."""
        slot = len(self._occupants)
        self._occupants.append(len(self._seqs))
        self._next.append(slot + 1)
        self._add(seq, slot)

    def replace(self, seq: int, start: int, end: int) -> list[int]:
        """Puts a message in place of those from `start` to `end`; the seqs of these.

        None, and nothing is changed, when the surface has no such span: readers of the original refuse that log,
        to whom the order of the surface matters. Raises Misshapen as `append`.
        """
        first, last = self._find(start), self._find(end)
        if first is None or last is None or self._slots[first] > self._slots[last]:
            return []
        place, end_slot = self._slots[first], self._slots[last]
        taken, slot = [], place
        while True:
            occupant = self._occupants[slot]
            self._replaced_by[occupant] = seq
            taken.append(self._seqs[occupant])
            if slot == end_slot:
                break
            slot = self._next[slot]
        self._next[place] = self._next[end_slot]
        self._occupants[place] = len(self._seqs)
        self._add(seq, place)
        return taken

    def replaced_by(self, seq: int) -> int | None:
        """The seq of the message that took this one's place; None while it is on the surface, or never was."""
        at = bisect_left(self._seqs, seq)
        if at == len(self._seqs) or self._seqs[at] != seq or self._replaced_by[at] == _NONE:
            return None
        return self._replaced_by[at]

    def __iter__(self) -> Iterator[int]:
        """The seqs on the surface, in its order."""
        slot = 0
        while slot < len(self._occupants):
            yield self._seqs[self._occupants[slot]]
            slot = self._next[slot]

    def _add(self, seq: int, slot: int) -> None:
        self._seqs.append(seq)
        self._slots.append(slot)
        self._replaced_by.append(_NONE)
        if self._most_bytes is not None and _NODE_BYTES * len(self._seqs) > self._most_bytes:
            raise Misshapen(f"more messages than there is room for ({self._most_bytes} bytes)")

    def _find(self, seq: int) -> int | None:
        """The place in the log's order of a message that is on the surface."""
        at = bisect_left(self._seqs, seq)
        if at == len(self._seqs) or self._seqs[at] != seq or self._replaced_by[at] != _NONE:
            return None
        return at
