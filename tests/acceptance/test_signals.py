"""A process that is asked to stop ends: by itself in time, else by force."""

import signal
import subprocess
import sys

import pytest

from app.cli import INTERRUPTED
from app.exits import ExitCode

pytestmark = pytest.mark.process

PROGRAM = """
import threading
from app.signals import stop_on_signals
stop = threading.Event()
with stop_on_signals(stop, grace_s={grace}, exit_code=3):
    print("ready", flush=True)
    stop.wait()
    print("asked", flush=True)
    {then}
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    ("grace", "then", "code", "said"),
    [(60, "pass", 0, "asked\nended\n"), (0.1, "threading.Event().wait()", 3, "asked\n")],
    ids=["in time", "hangs"],
)
def test_a_signal_sets_the_event_and_a_process_that_hangs_is_ended(
    number: signal.Signals, grace: float, then: str, code: int, said: str
) -> None:
    program = PROGRAM.format(grace=grace, then=then)
    with subprocess.Popen(
        # Whoever runs the tests may ignore it: in the background, or by nohup.
        [sys.executable, "-c", f"import signal; signal.signal({number}, signal.SIG_DFL)\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == said
        assert process.wait(60) == code


def test_a_terminal_that_goes_away_does_not_stop_what_was_started_by_nohup() -> None:
    """SIGHUP stays ignored where it was; SIGTERM still stops it."""
    program = PROGRAM.format(grace=60, then="pass")
    with subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "asked\nended\n"
        assert process.wait(60) == 0


LOADING = """
import os, signal, sys
from app.cli import main
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "app.exits":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
sys.exit(main())
"""


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback() -> None:
    """Exit code 130 and silence, as at any other moment."""
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, b"", b"")
    assert INTERRUPTED == ExitCode.INTERRUPTED
