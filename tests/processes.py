"""Real worker and projector processes of the tests, to be killed with real signals."""

import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from app.processes import Child
from app.system import child_environ
from feedback import keys
from feedback.settings import Settings
from tests.preforked import Preforked, preforked

_ROOT = Path(__file__).parents[1]


class ForkedChild(Child):
    """A child that was forked from a process which has loaded the program (`tests.preforked`)."""

    def __init__(
        self, by: Preforked, name: str, module: str, words: Sequence[str], *, log: Path, environ: Mapping[str, str]
    ) -> None:
        super().__init__(name, (), log=log)
        self._by = by
        self._what = module, tuple(words), dict(environ)
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int | None:
        return self._pid

    def start(self) -> None:
        module, words, environ = self._what
        with self.log.open("ab") as log:
            self._pid, self._code = self._by.spawn(module, words, environ, log), None

    def poll(self) -> int | None:
        if self._pid is None:
            raise RuntimeError(f"{self.name} was not started")
        if self._code is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def stop(self, grace_s: float) -> bool:
        if self._pid is None:
            return True
        by_itself = self.poll() is not None
        if not by_itself:
            os.kill(self._pid, signal.SIGTERM)
            by_itself = self._ends_within(grace_s)
        if not by_itself:
            self.kill()
            self._ends_within(None)
        self._pid = None
        return by_itself

    def kill(self) -> None:
        if self._pid is not None and self.poll() is None:
            os.killpg(self._pid, signal.SIGKILL)

    def _ends_within(self, seconds: float | None) -> bool:
        assert self._pid is not None
        descriptor = os.pidfd_open(self._pid)
        try:
            select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
        return self.poll() is not None


def program(name: str, module: str, *words: str, log: Path, environ: Mapping[str, str]) -> Child:
    """`python -m module` with these words, to be started: forked where that comes to the same."""
    if (by := preforked(environ)) is not None:
        return ForkedChild(by, name, module, words, log=log, environ=environ)
    environ = {"PYTHONPATH": str(_ROOT)} | dict(environ)
    return Child(name, (sys.executable, "-P", "-m", module, *words), log=log, environ=environ)


def child(name: str, settings: Settings, logs: Path, variables: Mapping[str, str] | None = None) -> Child:
    """`feedback worker` or `feedback projector` with exactly these settings, and more variables, started."""
    environ = child_environ(settings) | dict(variables or {})
    process = program(name, "app.cli", name, log=logs / f"{name}.log", environ=environ)
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


def let_leases_run_out(redis: Redis, process: Child) -> None:
    """A worker that was killed, or stands still, loses its session, as it does when a lease's time has passed."""
    for session in redis.scan_iter(f"{keys.SESSION_PREFIX}*-{process.pid}-*"):
        redis.delete(session)


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
