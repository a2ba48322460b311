"""Child processes of `feedback up` and of the test fixtures: own session, tethered to their parent, log to a file."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TETHER = str(Path(__file__).with_name("tether.py"))
_TAIL_BYTES = 4096


class Child:
    """One child process that can be started, watched, stopped and started again.

    It runs in a session of its own, so that Ctrl-C on the terminal reaches only the parent, which stops its
    children in order; on Linux it is killed when its parent dies. The kernel ties it to the *thread* that
    called `start`, which must therefore live on.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
    ) -> None:
        """`command[0]` is an absolute path; `inherit` are file descriptors that stay open in the child."""
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._environ = None if environ is None else dict(environ)
        self._inherit = tuple(inherit)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs or has not been waited for, else None."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it. Raises OSError when the operating system refuses."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  own executables, no shell
                [sys.executable, "-I", "-S", _TETHER, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                pass_fds=self._inherit,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while it runs."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.poll()

    def stop(self, grace_s: float) -> bool:
        """Ask it to stop, wait `grace_s` seconds, then kill it. True when it went by itself. Repeatable."""
        process, self._process = self._process, None
        if process is None:
            return True
        # Popen.send_signal polls first, so a pid that was reused is never hit.
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        return True

    def kill(self) -> None:
        """Kill it, and whatever it started; `poll` says so soon. Nothing happens when it is gone."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of its log, for a message that has to say why it died."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""
