"""Real worker and projector processes of the tests, to be killed with real signals."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.processes import Child
from app.system import child_environ
from feedback.settings import Settings


def child(name: str, settings: Settings, logs: Path, variables: Mapping[str, str] | None = None) -> Child:
    """`feedback worker` or `feedback projector` with exactly these settings, and more variables, started."""
    environ = child_environ(settings) | dict(variables or {})
    process = Child(name, (sys.executable, "-P", "-m", "app.cli", name), log=logs / f"{name}.log", environ=environ)
    process.start()
    return process


def kill(process: Child, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal that the process cannot argue with (or SIGCONT)."""
    assert process.pid is not None
    os.kill(process.pid, number)


def is_stopped(process: Child) -> bool:
    """Whether a SIGSTOP holds it."""
    assert process.pid is not None
    return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def children(*names: str, settings: Settings, logs: Path) -> Iterator[list[Child]]:
    """Several processes; whatever is left of them at the end is stopped."""
    running: list[Child] = []
    try:
        running.extend(child(name, settings, logs) for name in names)
        yield running
    finally:
        for process in running:
            process.stop(settings.shutdown_grace)
