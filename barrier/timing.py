"""How long the barrier takes."""

import time
from collections.abc import Callable, Mapping

from barrier.rules import Barrier, DurabilityBarrier, Need

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of durations: from a stat of an unchanged log to a disk that hangs."""


class TimedBarrier:
    """A barrier that says after each check how many seconds it took, and of how many Sessions it was."""

    def __init__(self, barrier: DurabilityBarrier, took: Callable[[float, int], None]) -> None:
        self._barrier = barrier
        self._took = took

    def check(self, needs: Mapping[str, Need]) -> Mapping[str, Barrier]:
        """As the barrier's own."""
        began = time.perf_counter()
        try:
            return self._barrier.check(needs)
        finally:
            self._took(time.perf_counter() - began, len(needs))
