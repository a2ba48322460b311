"""Whether a process still does its rounds: each of its loops says so, and a probe asks from outside."""

import time


class Vitals:
    """When each loop of a process last began a turn. Written by the loops, read by any thread."""

    def __init__(self) -> None:
        self._turns: dict[str, float] = {}

    def turn(self, loop: str) -> None:
        """A turn of this loop begins. Costs one look at the clock."""
        self._turns[loop] = time.monotonic()

    def standing_still(self, for_s: float) -> list[str]:
        """Loops that have not turned for so many seconds. One that never did is still starting."""
        now = time.monotonic()
        return [loop for loop, turned in tuple(self._turns.items()) if now - turned > for_s]
