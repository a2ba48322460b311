"""Crash points: off unless armed, and armed only by what exists."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedback.crashpoints import VARIABLE, Action, CrashPoint, CrashPointReached, arm, reach
from feedback.errors import SettingsInvalid


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No test leaves a point armed."""
    yield
    arm({})


def times_raised(point: CrashPoint, tries: int) -> list[int]:
    """The tries, from 1, at which reaching the point raised."""
    raised = []
    for number in range(1, tries + 1):
        try:
            reach(point)
        except CrashPointReached:
            raised.append(number)
    return raised


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_nothing_happens_unless_the_variable_names_a_point(environ: dict[str, str]) -> None:
    arm(environ)
    for point in CrashPoint:
        reach(point)


@pytest.mark.parametrize(("count", "expected"), [("", [1]), (":1", [1]), (":3", [3]), (":*", [1, 2, 3, 4, 5])], ids=str)
def test_it_happens_the_time_that_is_asked_for(count: str, expected: list[int]) -> None:
    """The first one if none is, every time for `*`; and at the point that is named only."""
    arm({VARIABLE: f"after-commit:raise{count}"})
    reach(CrashPoint.BEFORE_COMMIT)
    assert times_raised(CrashPoint.AFTER_COMMIT, 5) == expected


@pytest.mark.parametrize("point", CrashPoint)
@pytest.mark.parametrize("action", Action)
def test_every_point_and_action_can_be_named(point: CrashPoint, action: Action) -> None:
    arm({VARIABLE: f"{point}:{action}:2"})
    reach(point)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("after-lunch:kill", "no crash point 'after-lunch'; there are after-lease, after-fence, "),
        ("after-commit:explode", "no action 'explode'; there are kill, stop, raise"),
        ("after-commit", "is not name:action"),
        ("after-commit:kill:0", "is not name:action"),
        ("after-commit:kill:-1", "is not name:action"),
        ("after-commit:kill:1:1", "is not name:action"),
        ("after-commit:kill\n", "is not name:action"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(text: str, says: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"{VARIABLE}: .*{says}"):
        arm({VARIABLE: text})
    reach(CrashPoint.AFTER_COMMIT)


def test_a_killed_process_does_nothing_more() -> None:
    """Not even what Python does at its end."""
    program = (
        "from feedback import crashpoints; "
        f"crashpoints.arm({{{VARIABLE!r}: 'after-claim:kill'}}); "
        "print('before', flush=True); crashpoints.reach(crashpoints.CrashPoint.AFTER_CLAIM); print('after')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "before\n"


def test_the_page_on_testing_names_every_point() -> None:
    """And none besides."""
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(CrashPoint)
