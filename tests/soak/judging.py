"""Whether a measured quantity grows without bound: a trend in what was sampled after warming up (pure).

Growth is counted per command done, not per second, so that a slow machine and a fast one are judged alike. Two things
must hold before it counts: the trend is no accident (Mann-Kendall), and it is more than what is allowed (Theil-Sen's
slope, the median over all pairs, which single spikes do not move).
"""

import itertools
from collections.abc import Sequence
from math import sqrt
from statistics import median

from msgspec import Struct

_SIGNIFICANT = 2.576
"""Standard deviations of Mann-Kendall's S: one series in two hundred is this far up by accident."""
_FEWEST = 8


class Bound(Struct, frozen=True):
    """How much a quantity may grow: `slack` altogether, whatever the trend, and `per_command` beyond that."""

    slack: float
    per_command: float


class Sample(Struct, frozen=True):
    """A quantity when so many commands were done."""

    commands: int
    value: float


class Verdict(Struct, frozen=True):
    """What the second half of a series came to. `slope` is per command."""

    first: float
    last: float
    slope: float
    grows: bool


def judge(samples: Sequence[Sample], bound: Bound) -> Verdict:
    """Judge the second half of a series, in order of time: the first half is for warming up.

    Raises:
        ValueError: fewer samples than any trend could be seen in.
    """
    steady = samples[len(samples) // 2 :]
    if len(steady) < _FEWEST:
        raise ValueError(f"{len(samples)} samples; {2 * _FEWEST} are needed")
    slope = _slope(steady)
    growth = slope * (steady[-1].commands - steady[0].commands)
    grows = slope > bound.per_command and growth > bound.slack and _rises(steady)
    quarter = max(1, len(steady) // 4)
    first, last = (median(one.value for one in part) for part in (steady[:quarter], steady[-quarter:]))
    return Verdict(first, last, slope, grows)


def _slope(samples: Sequence[Sample]) -> float:
    slopes = [
        (after.value - before.value) / (after.commands - before.commands)
        for before, after in itertools.combinations(samples, 2)
        if after.commands > before.commands
    ]
    return median(slopes) if slopes else 0.0


def _rises(samples: Sequence[Sample]) -> bool:
    """Whether later samples are larger than earlier ones more often than chance has it."""
    pairs = itertools.combinations((one.value for one in samples), 2)
    score = sum((after > before) - (after < before) for before, after in pairs)
    count = len(samples)
    return score > _SIGNIFICANT * sqrt(count * (count - 1) * (2 * count + 5) / 18)
