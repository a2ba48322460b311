"""Requests that get no answer: each is counted, and the log tells of them without being flooded."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

logger = logging.getLogger(__name__)

_QUIET_S = 10.0


class Reason(StrEnum):
    """Why a request, or a question of one, gets no answer."""

    MALFORMED = "malformed"
    FOREIGN = "foreign"
    """It is for another host."""
    OVERDUE = "overdue"
    """Its deadline had passed when it was taken: nobody waits any more, or the clocks differ."""
    CROWDED = "crowded"
    """Too many wait for live owners already."""


class Dropped:
    """Whoever asked asks again, so nothing is lost; but somebody should know."""

    def __init__(
        self, name: str, count: Callable[[str, int], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` says in the log who does not answer; `count` is told of every drop, by reason and number; `clock`
        gives seconds."""
        self._name = name
        self._count = count
        self._clock = clock
        self._untold: Counter[Reason] = Counter()
        self._quiet_until: dict[Reason, float] = {}

    def note(self, reason: Reason, detail: str, count: int = 1) -> None:
        """So many were dropped. A line of the log has what was dropped since the one before it, and the last detail."""
        self._count(reason, count)
        self._untold[reason] += count
        now = self._clock()
        if now >= self._quiet_until.get(reason, now):
            self._quiet_until[reason] = now + _QUIET_S
            logger.warning(
                "not answered by=%s reason=%s count=%d: %s", self._name, reason, self._untold.pop(reason), detail
            )
