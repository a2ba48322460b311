"""What a benchmark gives: figures with median and spread, compared with something measured in the same run."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Literal, TypeAlias

from msgspec import Struct

Rounds: TypeAlias = Sequence[Sequence[float]]
"""Samples, round by round. Rounds of things that are compared were measured next to each other."""


class Target(Struct, frozen=True):
    """What issue 5 or issue 3 asks for."""

    bound: Literal["at most", "at least"]
    limit: float
    of: Literal["ratio", "value"] = "ratio"


class Spread(Struct, frozen=True):
    """The middle of some samples, and the quarter points around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Raises `statistics.StatisticsError` when there are none."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, middle, high = quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high)


class Figure(Struct, frozen=True, kw_only=True):
    """One row of a table. `ratio` is the value over what it is compared with (`against`)."""

    name: str
    unit: str
    value: Spread
    samples: int
    against: str | None = None
    ratio: Spread | None = None
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        spread = self.ratio if self.target.of == "ratio" else self.value
        assert spread is not None, "a target of a ratio stands at a ratio"
        if self.target.bound == "at most":
            return spread.median <= self.target.limit
        return spread.median >= self.target.limit


def figure(name: str, unit: str, rounds: Rounds, *, target: Target | None = None) -> Figure:
    """Something by itself; a target is one of its value."""
    samples = [sample for one in rounds for sample in one]
    return Figure(name=name, unit=unit, value=Spread.of(samples), samples=len(samples), target=target)


def compared(
    name: str, unit: str, rounds: Rounds, against: str, baseline: Rounds, *, target: Target | None = None
) -> Figure:
    """Something and how it stands to its baseline: the ratio of the medians of each pair of rounds."""
    ratios = [median(ours) / median(theirs) for ours, theirs in zip(rounds, baseline, strict=True)]
    samples = [sample for one in rounds for sample in one]
    return Figure(
        name=name,
        unit=unit,
        value=Spread.of(samples),
        samples=len(samples),
        against=against,
        ratio=Spread.of(ratios),
        target=target,
    )


def tail(name: str, unit: str, rounds: Rounds, *, target: Target | None = None) -> Figure:
    """The 99th percentile, and how it stands to the median of the same samples."""
    samples = [sample for one in rounds for sample in one]
    value = quantiles(samples, n=100, method="inclusive")[98]
    ratio = value / median(samples)
    return Figure(
        name=name,
        unit=unit,
        value=Spread(value, value, value),
        samples=len(samples),
        against="its own median",
        ratio=Spread(ratio, ratio, ratio),
        target=target,
    )
