"""A process that is asked to stop ends: by itself in time, else by force."""

import signal
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("grace", "then", "code", "said"),
    [(60, "pass", 0, "asked\nended\n"), (0.1, "threading.Event().wait()", 3, "asked\n")],
    ids=["in time", "hangs"],
)
def test_a_signal_sets_the_event_and_a_process_that_hangs_is_ended(
    number: signal.Signals, grace: float, then: str, code: int, said: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(grace=grace, then=then)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == said
        assert process.wait(60) == code
