"""The soak's judgement: it lets pass what is steady, and finds what grows. `make soak` runs long ones."""

import random
from pathlib import Path

import pytest

from tests.soak.judging import Bound, Sample, judge
from tests.soak.running import soak

BOUND = Bound(slack=10, per_command=0.1)


def series(at: int, level: float, noise: random.Random) -> float:
    """What grows while it warms up, and is then as it is, with noise and a spike now and then."""
    return min(at, 100) + level + noise.uniform(-5, 5) + (100 if noise.random() < 0.05 else 0)


def test_what_is_steady_after_warming_up_passes() -> None:
    """With noise, spikes, one step, or a trend that is too small to matter."""
    for seed in range(50):
        noise = random.Random(seed)
        steady = [Sample(10 * at, series(at, 50, noise)) for at in range(200)]
        assert not judge(steady, BOUND).grows
        stepped = [Sample(one.commands, one.value + 8 * (at > 150)) for at, one in enumerate(steady)]
        assert not judge(stepped, BOUND).grows
        creeping = [Sample(one.commands, one.value + one.commands * 0.005) for one in steady]
        assert not judge(creeping, BOUND).grows


def test_what_grows_is_found() -> None:
    """Also behind noise, and when it began late or comes in steps."""
    for seed in range(50):
        noise = random.Random(seed)
        growing = [Sample(10 * at, series(at, 50 + 2 * at, noise)) for at in range(200)]
        verdict = judge(growing, BOUND)
        assert verdict.grows
        assert 0.15 < verdict.slope < 0.25
        assert verdict.first < verdict.last
        in_steps = [Sample(10 * at, series(at, 60 * (at // 30), noise)) for at in range(200)]
        assert judge(in_steps, BOUND).grows


def test_too_few_samples_are_no_evidence() -> None:
    """Nor does a system that did nothing show any trend."""
    with pytest.raises(ValueError, match="16 are needed"):
        judge([Sample(at, at) for at in range(14)], BOUND)
    assert not judge([Sample(0, at) for at in range(100)], BOUND).grows


@pytest.mark.server
@pytest.mark.process
def test_a_worker_that_leaks_is_found_and_honest_processes_are_not(tmp_path: Path) -> None:
    """In a few seconds, for it keeps 32 KiB of each command; the projector beside it is honest."""
    lines: list[str] = []
    leaking = ("-m", "tests.soak.leaking")
    soaked = soak(tmp_path, seconds=6, rate=200, samples=60, workers=1, worker=leaking, say=lines.append)
    assert soaked.commands > 300
    assert ("worker-1", "resident memory") in soaked.growing
    honest = {name for name in soaked.verdicts if name[0] in ("worker-1", "projector") and name[1] != "resident memory"}
    assert honest.isdisjoint(soaked.growing)
    assert ("projector", "resident memory") not in soaked.growing
    assert lines
