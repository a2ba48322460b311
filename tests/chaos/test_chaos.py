"""A short campaign on every change, and broken workers that it must catch. `make chaos` runs long ones."""

from pathlib import Path

import pytest

from tests.chaos.campaign import run
from tests.chaos.mutants import Mutant

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(400)]


def test_every_promise_holds_under_faults(tmp_path: Path) -> None:
    """Linearizable per message, nothing acknowledged lost, one effect per id, copies that equal the store."""
    report = run(tmp_path, seconds=20, seed=20, say=print)
    assert report.checked.violations == []
    assert report.checked.answers > 100
    assert report.injected.total() > 10


TELLING = {
    Mutant.FENCE_OFF: ("a forgotten zombie",),
    Mutant.ACKNOWLEDGE_FIRST: ("kill a worker", "lose a reply"),
    Mutant.FORGETFUL: ("a command is delivered again", "lose a reply"),
}
"""The faults that show what each mutant lacks."""


@pytest.mark.parametrize("mutant", Mutant)
def test_a_broken_worker_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """A campaign that could not tell would prove nothing."""
    for seed in range(4):
        report = run(tmp_path / str(seed), seconds=10, seed=seed, say=print, kinds=TELLING[mutant], mutant=mutant)
        if report.checked.violations:
            return
    pytest.fail(f"{mutant} was not caught")
