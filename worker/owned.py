"""One partition as its owner holds it."""

import time

from worker.claims import Claimed, Recovered
from worker.engine import Ownership
from worker.parking import ParkingLot


class Owned:
    """A partition that this worker owns, and what it has claimed of it. It can be lost at any moment."""

    def __init__(self, ownership: Ownership, lot: ParkingLot, left: Recovered, *, bereft: bool) -> None:
        """`left` is what its last owner left behind, `bereft` whether that one ended over it."""
        self.ownership = ownership
        self.lot = lot
        self.suspects = left.commands if left.again else 0
        """Commands at the head of the queue, over which two owners ended."""
        self.scars = left.commands if bereft and not left.again else 0
        """Commands that are not done yet, over which one owner ended."""
        self.since = time.monotonic()
        self.waiting: list[Claimed] = []
        """Claimed, and not tried yet."""

    def held(self) -> int:
        """Commands claimed and not finished."""
        return len(self.waiting) + len(self.lot)
