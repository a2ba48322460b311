"""Who injects the faults: drawn from a seed, one after the other, and undone when their time is over."""

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from redis.exceptions import RedisError

from feedback.errors import FeedbackError
from tests.chaos.history import History
from tests.chaos.system import ChaosSystem

Kinds: TypeAlias = Mapping[str, tuple[int, Callable[[], str]]]
"""Name -> how often it is drawn, and what injects it and says in a few words what it did."""


class Field:
    """What the faults work with: the system, what its clients did, the draw, and a timetable."""

    def __init__(self, system: ChaosSystem, history: History, sessions: tuple[str, ...], rng: random.Random) -> None:
        self.system = system
        self.history = history
        self.sessions = sessions
        self.rng = rng
        self._timetable: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, undo: Callable[[], object]) -> None:
        """Do something later, in the nemesis's own thread."""
        heapq.heappush(self._timetable, (time.monotonic() + seconds, next(self._order), undo))

    def pass_time(self, seconds: float) -> None:
        """Sleep, and do what is due meanwhile."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            while self._timetable and self._timetable[0][0] <= now:
                heapq.heappop(self._timetable)[2]()
            time.sleep(min(0.02, max(0.0, until - now)))

    def end_all(self) -> None:
        """Do at once what was to be done later."""
        while self._timetable:
            heapq.heappop(self._timetable)[2]()


class Nemesis:
    """Injects one fault after the other."""

    def __init__(self, field: Field, kinds: Kinds, only: Collection[str] = ()) -> None:
        """`only` names the faults to draw from; all when it is empty."""
        self._field = field
        self._kinds = {kind: kinds[kind] for kind in only} if only else dict(kinds)
        self.injected: Counter[str] = Counter()

    def inject(self) -> str:
        """One fault, drawn; what it was."""
        field = self._field
        names = list(self._kinds)
        (kind,) = field.rng.choices(names, [weight for weight, _ in self._kinds.values()])
        refused = field.system.bury()
        if refused:
            self.injected["(a process could not begin, and was started again)"] += refused
        try:
            said = self._kinds[kind][1]()
        except (RedisError, FeedbackError) as error:
            return f"{kind}: not now ({type(error).__name__})"
        if not said:
            return f"{kind}: not now"
        self.injected[kind] += 1
        return f"{kind}: {said}"
