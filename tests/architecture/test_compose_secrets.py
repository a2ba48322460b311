"""The secrets of the many-machine profile: made as a whole or not at all, and never made over."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/compose/make_secrets.py"
FILES = 10
# Runs the script, and ends as if killed at the sync of that number: each file's, then the directory's.
_KILLED = """
import os, runpy, sys
script, place, number = sys.argv[1:]
syncs, sync = iter(range(int(number))), os.fsync
os.fsync = lambda descriptor: os._exit(9) if next(syncs, None) is None else sync(descriptor)
sys.argv = [script, place]
runpy.run_path(script, run_name="__main__")
"""


def make(place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", SCRIPT, place], capture_output=True, text=True, check=False)


def contents(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir()}


def test_a_run_that_is_killed_leaves_nothing_that_could_be_taken_for_secrets(tmp_path: Path) -> None:
    """The next one makes them all, private to their owner; and the one after it changes nothing."""
    place = tmp_path / "deep" / "secrets"
    for number in (0, 3, FILES):
        killed = subprocess.run([sys.executable, "-I", "-c", _KILLED, SCRIPT, place, str(number)], check=False)
        assert killed.returncode == 9
        assert not place.exists()
    assert make(place).returncode == 0
    made = contents(place)
    assert len(made) == FILES
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o444}
    again = make(place)
    assert (again.returncode, contents(place)) == (0, made)
    assert "nothing was changed" in again.stdout


@pytest.mark.parametrize("name", ["worker.toml", "users.acl"])
def test_a_directory_that_lacks_some_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    """Passwords that others use already cannot be drawn again."""
    (tmp_path / name).write_text("somebody's")
    refused = make(tmp_path)
    assert refused.returncode == 1
    assert "move it away" in refused.stderr
    assert contents(tmp_path) == {name: "somebody's"}
