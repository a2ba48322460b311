"""Faults of workers and projectors: killed, frozen, broken at a named place, wrong about the time."""

import signal
from contextlib import suppress

from app.processes import Child
from feedback.crashpoints import CrashPoint
from tests.chaos.nemesis import Field, Kinds
from tests.chaos.system import LEASE_TTL_S, is_stopped, kill
from tests.harness import wait_until

_OF_PROJECTORS = tuple(point for point in CrashPoint if "checkpoint" in point)
_OF_OPERATORS = (CrashPoint.AFTER_SUCCESSION,)
_OF_AGENTS = (
    CrashPoint.AFTER_ASKING,
    CrashPoint.AFTER_REGISTERING,
    CrashPoint.AFTER_QUESTION,
    CrashPoint.AFTER_READING,
    CrashPoint.BEFORE_TELLING,
)
"""No log lies elsewhere here."""
_OF_WORKERS = tuple(point for point in CrashPoint if point not in (*_OF_PROJECTORS, *_OF_OPERATORS, *_OF_AGENTS))
_ZOMBIE_POINTS = (CrashPoint.AFTER_CLAIM, CrashPoint.AFTER_BARRIER, CrashPoint.BEFORE_COMMIT)
_MOST_WORKERS = 5
_PATIENCE_S = 10.0
_HOUR_MS = 3_600_000
_STEPS_MS = (-87_600 * _HOUR_MS, -_HOUR_MS, -60_000, -1000, 0, 1000, 60_000, _HOUR_MS, 87_600 * _HOUR_MS)
"""Of a worker's clock: up to ten years, either way."""


class ProcessFaults:
    """Workers, the projector, and their clocks."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._system, self._rng = field.system, field.rng

    def kinds(self) -> Kinds:
        return {
            "kill a worker": (4, self._kill_worker),
            "pause a worker": (4, self._pause_worker),
            "a worker crashes": (5, self._crash),
            "a zombie": (3, self._zombie),
            "a forgotten zombie": (1, self._forgotten_zombie),
            "a worker joins": (2, self._join),
            "a worker leaves": (2, self._leave),
            "a worker's clock steps": (3, self._step_clock),
            "kill the projector": (1, self._kill_projector),
            "pause the projector": (1, self._pause_projector),
            "the projector crashes": (2, self._crash_projector),
        }

    def _drawn(self) -> Child:
        return self._rng.choice(self._system.workers)

    def _remove(self) -> Child:
        child = self._drawn()
        self._system.workers.remove(child)
        return child

    def _kill_worker(self) -> str:
        child = self._remove()
        kill(child)
        child.stop(0)
        self._system.add_worker()
        return child.name

    def _pause_worker(self) -> str:
        return self._pause(self._drawn())

    def _pause(self, child: Child) -> str:
        seconds = self._rng.uniform(0.3, 3) * LEASE_TTL_S
        kill(child, signal.SIGSTOP)
        self._field.after(seconds, lambda: kill(child, signal.SIGCONT))
        return f"{child.name} for {seconds:.1f} s"

    def _crash(self) -> str:
        """Another worker that dies, stops for long, or meets a defect at a named place in the code."""
        action = self._rng.choice(("kill", "stop", "raise"))
        return self._armed(f"{self._rng.choice(_OF_WORKERS)}:{action}:{self._rng.choice((1, 1, 2, 5))}")

    def _zombie(self) -> str:
        """Another worker that stops with a batch in its hands, and goes on when that is another one's."""
        return self._armed(f"{self._rng.choice(_ZOMBIE_POINTS)}:stop:{self._rng.randrange(1, 6)}")

    def _forgotten_zombie(self) -> str:
        """As a zombie, and the server forgets meanwhile what it held: its commands are nobody's but its own."""
        said = self._zombie()
        child = self._system.workers[-1]
        with suppress(AssertionError):
            wait_until(lambda: is_stopped(child), "it stops", _PATIENCE_S)
            self._system.admin.flushall()
            self._field.after(3 * LEASE_TTL_S, lambda: kill(child, signal.SIGCONT))
        return said

    def _armed(self, spec: str) -> str:
        if len(self._system.workers) > _MOST_WORKERS:
            child = self._remove()
            kill(child)
            child.stop(0)
        child = self._system.add_worker(spec)
        for beats in (6, 9, 12):
            self._field.after(beats * LEASE_TTL_S, lambda: kill(child, signal.SIGCONT))
        return f"{child.name} {spec}"

    def _join(self) -> str:
        return self._system.add_worker().name if len(self._system.workers) < _MOST_WORKERS else ""

    def _leave(self) -> str:
        if len(self._system.workers) < 2:
            return ""
        child = self._remove()
        kill(child, signal.SIGCONT)
        self._system.end(child)
        return child.name

    def _step_clock(self) -> str:
        """Once, or each quarter of a second for a while."""
        child, steps = self._drawn(), self._rng.choice((1, 1, 1, 8))
        for step in range(steps):
            ahead_ms = self._rng.choice(_STEPS_MS)
            self._field.after(step / 4, lambda ahead_ms=ahead_ms: self._system.step_clock(child, ahead_ms))  # type: ignore[misc]  # bound early
        self._field.after(self._rng.uniform(2, 6), lambda: self._system.step_clock(child, 0))
        known = self._system.step_clock(child, 0)
        return f"{child.name}, {steps} times" if known else ""

    def _kill_projector(self) -> str:
        self._system.replace_projector()
        return "and start another"

    def _pause_projector(self) -> str:
        return self._pause(self._system.projector)

    def _crash_projector(self) -> str:
        spec = f"{self._rng.choice(_OF_PROJECTORS)}:{self._rng.choice(('kill', 'stop'))}:{self._rng.choice((1, 3, 9))}"
        self._system.replace_projector(spec)
        child = self._system.projector
        self._field.after(4 * LEASE_TTL_S, lambda: kill(child, signal.SIGCONT))
        return spec
