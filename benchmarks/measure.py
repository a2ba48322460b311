"""Taking times: alternately, so that whatever else the machine does meets all that are compared."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from benchmarks.figures import Rounds

T = TypeVar("T")

_PATIENCE_S = 600.0


class Run:
    """One run of the benchmarks: how large, and where its files lie (on the disk that is to be measured)."""

    def __init__(self, directory: Path, *, quick: bool) -> None:
        self.directory = directory
        self.quick = quick

    def size(self, full: int, quick: int) -> int:
        """So many of something."""
        return quick if self.quick else full

    def home(self) -> TemporaryDirectory[str]:
        """A directory of one benchmark's own, for a `with` block."""
        return TemporaryDirectory(prefix="feedback-bench-", dir=self.directory)


class Prepared(NamedTuple):
    """Work of which the preparation is not timed."""

    prepare: Callable[[], object]
    work: Callable[[], object]


Action: TypeAlias = Callable[[], object] | Prepared


def alternately(actions: Sequence[Action], *, rounds: int, each: int, calls: int = 1) -> list[list[list[float]]]:
    """Microseconds per call: for each action its rounds of `each` samples; one sample is the mean of `calls` calls.

    The actions take turns sample by sample, the first of them changing.
    """
    taken: list[list[list[float]]] = [[] for _ in actions]
    for _ in range(rounds):
        for of_action in taken:
            of_action.append([])
        for sample in range(each):
            for place in range(len(actions)):
                index = (sample + place) % len(actions)
                taken[index][-1].append(_timed(actions[index], calls))
    return taken


def in_blocks(actions: Sequence[Action], *, rounds: int, each: int) -> list[list[list[float]]]:
    """As `alternately`, but the actions take turns round by round: each runs as warm as it does by itself."""
    taken: list[list[list[float]]] = [[] for _ in actions]
    for turn in range(rounds):
        for place in range(len(actions)):
            index = (turn + place) % len(actions)
            taken[index].append([_timed(actions[index], 1) for _ in range(each)])
    return taken


def _timed(action: Action, calls: int) -> float:
    if isinstance(action, Prepared):
        action.prepare()
    work = action.work if isinstance(action, Prepared) else action
    start = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - start) / calls / 1000


def rate(work: Callable[[], object], amount: int) -> float:
    """How many a second, when `work` does `amount`."""
    start = time.perf_counter()
    work()
    return amount / (time.perf_counter() - start)


def wait_until(condition: Callable[[], T], what: str, *, poll_s: float = 0.01) -> T:
    """Poll until the condition holds; its (true) value.

    Raises:
        TimeoutError: it did not in ten minutes: something is broken, not slow.
    """
    give_up = time.monotonic() + _PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"never came true: {what}")
        time.sleep(poll_s)
    return value


def rounds_of(taken: Rounds, value: Callable[[float], float]) -> list[list[float]]:
    """Samples in another measure, such as bytes a second instead of seconds."""
    return [[value(sample) for sample in one] for one in taken]


def drain_rate(remaining: Callable[[], int]) -> float:
    """How many a second vanish from a backlog that nobody adds to any more, until none remain.

    One that is gone at the first look (of a few, with `--quick`) counts as one command and the time of that look.
    """
    first, start = remaining(), time.perf_counter()
    wait_until(lambda: remaining() == 0, "the backlog is gone")
    return max(first, 1) / (time.perf_counter() - start)


def memory_mb(process: int | Literal["self"], line: Literal["VmRSS", "VmHWM"]) -> float:
    """What a process has in memory now, or had at most, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition(f"{line}:")[2].split()[0]) / 1000


def cpu_s(process: int) -> float:
    """The processor time that a process has taken."""
    # Behind the name, which may hold anything: fields 3 on.
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
