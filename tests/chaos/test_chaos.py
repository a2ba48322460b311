"""A short campaign on every change, and broken workers that its check must catch. `make chaos` runs long ones.

`pytest -m chaos tests/chaos` has short campaigns that must catch them.
"""

from pathlib import Path

import pytest

from tests.chaos.__main__ import print_report
from tests.chaos.campaign import run
from tests.chaos.mutants import Mutant
from tests.chaos.scenarios import play

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(400)]


ALWAYS = {
    "linearizable compare-and-set per message",
    "what is acknowledged is stored",
    "each answer is the recorded one",
    "one outcome per command id",
    "revisions are dense",
    "sequences are dense",
    "commit order respects real time",
    "no older epoch commits",
    "one worker commits in an epoch",
    "no feedback without its message",
    "lists show what was committed",
    "lists never go back",
    "streams equal the store",
    "cached lists equal the store",
}
"""What no campaign is too short to look at."""


def test_every_promise_holds_under_faults(tmp_path: Path) -> None:
    """Linearizable per message, nothing acknowledged lost, one effect per id, copies that equal the store."""
    report = run(tmp_path, seconds=8, seed=20, say=print, pause_s=0.6)
    print_report(report)
    assert report.checked.violations == []
    assert report.checked.checks.keys() >= ALWAYS
    assert report.checked.answers > 50
    assert report.injected.total() > 5


BROKEN = {
    Mutant.FENCE_OFF: "no older epoch commits",
    Mutant.ACKNOWLEDGE_FIRST: "what is acknowledged is stored",
    Mutant.FORGETFUL: "one outcome per command id",
}
"""The promise that each mutant breaks."""


@pytest.mark.parametrize("mutant", Mutant)
def test_a_broken_worker_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """A check that could not tell would prove nothing."""
    violations = play(tmp_path, mutant).violations
    assert any(one.startswith(f"{BROKEN[mutant]}: ") for one in violations), violations


TELLING = {
    Mutant.FENCE_OFF: ("a forgotten zombie",),
    Mutant.ACKNOWLEDGE_FIRST: ("kill a worker", "lose a reply"),
    Mutant.FORGETFUL: ("a command is delivered again", "lose a reply"),
}
"""The faults that show what each mutant lacks."""


@pytest.mark.chaos
@pytest.mark.parametrize("mutant", Mutant)
def test_a_campaign_meets_what_a_broken_worker_does(mutant: Mutant, tmp_path: Path) -> None:
    """A campaign that could not tell would prove nothing."""
    for seed in range(6):
        report = run(tmp_path / str(seed), seconds=8, seed=seed, say=print, kinds=TELLING[mutant], mutant=mutant)
        if report.checked.violations:
            return
    pytest.fail(f"{mutant} was not caught")
