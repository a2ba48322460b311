"""`--data DIR` of any name and in any state: it serves, or says what is wrong with which file; never a traceback."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from app.home import data_flag
from tests.acceptance.command_line import FEEDBACK, Up, environment, feedback, wait_for_end

pytestmark = pytest.mark.process

ODD_NAME = "my däta? #%41 \"quoted\" 'too' $HOME"


def test_the_commands_that_up_suggests_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """Whatever the directory is called, whether or not the virtual environment is active; and never what is rated."""
    for path, program in ((os.defpath, FEEDBACK), (f"{Path(FEEDBACK).parent}{os.pathsep}{os.defpath}", "feedback")):
        env = environment({"PATH": path})
        command = (FEEDBACK, "up", "--data", ODD_NAME)
        with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as up:
            try:
                assert up.stdout is not None
                assert "Next, in another terminal:\n" in iter(up.stdout.readline, "")
                for answer in ("demo-flaky-test", "stored: positive"):
                    line = up.stdout.readline()
                    assert line.startswith(f"  {program} ")
                    typed = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, capture_output=True, check=False)
                    assert (typed.returncode, typed.stderr) == (0, b"")
                    assert typed.stdout.decode().startswith(answer)
            finally:
                up.terminate()
            assert up.stdout.read() == "stopped; all data is kept\n"
        assert up.returncode == 0


def test_a_dash_at_the_beginning_is_no_option() -> None:
    """`--data -x` would be taken for two options."""
    assert data_flag(Path("-x y")) == "--data='-x y'"
    assert data_flag(Path("x")) == "--data x"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("", "Not a directory"),
        ("logs", "Not a directory"),
        ("valkey", "Not a directory"),
        ("sessions", "Not a directory"),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path, broken: str, reason: str) -> None:
    """Exit code 2, one line with path and reason, and nothing keeps running."""
    place = tmp_path / "data" / broken
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    refused = feedback("up", "--data", tmp_path / "data")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("SettingsInvalid: ")
    assert refused.err.endswith(f"{place}: {reason}\n")


def test_a_directory_in_the_place_of_the_endpoint_is_named(tmp_path: Path) -> None:
    """It is said before anything is started."""
    (tmp_path / "data/endpoint.json").mkdir(parents=True)
    refused = feedback("up", "--data", tmp_path / "data")
    assert (refused.code, refused.out) == (2, "")
    assert f"{tmp_path}/data/endpoint.json: Is a directory" in refused.err


def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """`endpoint.json` could not name it."""
    data = os.fsencode(tmp_path) + b"/d\xff"
    refused = feedback("up", "--data", data)
    assert (refused.code, refused.out) == (2, "")
    assert "the path is not UTF-8" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_cannot_be_written_leaves_no_half_of_it(tmp_path: Path) -> None:
    """No byte may be written: the reason is said, and the next start makes the whole demo."""
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$0" up --data data', FEEDBACK],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (limited.returncode, limited.stdout) == (3, "")
    assert "File too large" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert list((tmp_path / "data/sessions").iterdir()) == []
    with Up(tmp_path / "data") as up:
        assert len(up.feedback("sessions", "--json").document["sessions"]) == 3


def test_a_system_that_was_killed_is_not_taken_for_a_running_one(tmp_path: Path) -> None:
    """Its `endpoint.json` is still there; clients and workers are told how to start it, at once."""
    with Up(tmp_path / "data") as up:
        up.signal(signal.SIGKILL)
        up.wait()
        wait_for_end(up.pids.values())
    assert (tmp_path / "data/endpoint.json").exists()
    for words in (("list", "demo-flaky-test"), ("status",), ("worker",), ("projector",)):
        answer = feedback(*words, "--data", tmp_path / "data")
        assert (answer.code, answer.out) == (3, "")
        assert answer.err.startswith(f"QueueUnavailable: no system runs in {tmp_path}/data: start one with ")
    assert feedback("sessions", "--data", tmp_path / "data").code == 0


def test_a_closed_terminal_stops_everything_in_order(tmp_path: Path) -> None:
    """SIGHUP is a wish to stop: the endpoint goes, and the store is closed."""
    with Up(tmp_path / "data") as up:
        up.signal(signal.SIGHUP)
        assert up.wait() == 0
    assert not (tmp_path / "data/endpoint.json").exists()
    assert not (tmp_path / "data/sidecar.sqlite3-wal").exists()
