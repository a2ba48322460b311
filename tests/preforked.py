"""`feedback` commands as processes of their own, without the time that Python takes to load them.

A process that has loaded the program forks one process per command: with its own pid, variables, directory, output and
exit code, as a shell's would have. Only the importing is not done again.
"""

import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import app.cli

_ROOT = Path(__file__).parents[1]
_MOST_BYTES = 2**20
_AT_LOADING = ("PYTHON", "RQ_", "LD_", "OTEL_")
"""Variables that count when a program is loaded begin so."""
_LAZY = ("persistence.sidecar.sqlite", "projections.process", "worker.process", "barrier.process")
"""What commands load when they need it."""


class Preforked:
    """A process that forks commands; it ends when this one does."""

    def __init__(self) -> None:
        self._variables = _at_loading(os.environ)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preforked", str(theirs.fileno())],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it. Commands that run go on."""
        self._requests.close()
        self._process.wait()

    def suits(self, environ: Mapping[str, str]) -> bool:
        """Whether a command with these variables would have been loaded like this process."""
        return _at_loading(environ) == self._variables

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], directory: Path, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run `feedback` with these words: exit code (negative: the signal), stdout, stderr.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        request = json.dumps([words, dict(environ), os.fspath(directory)]).encode()
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, os.fdopen(reading, "rb", 0) as status:
            try:
                # One message: others' threads may send theirs meanwhile.
                socket.send_fds(self._requests, [request], [out.fileno(), err.fileno(), writing])
            finally:
                os.close(writing)
            pid = int(status.readline())
            ready, _, _ = select.select([status], [], [], timeout_s)
            if not ready:
                os.kill(pid, signal.SIGKILL)
            code = int(status.readline())
            if not ready:
                raise subprocess.TimeoutExpired(["feedback", *words], timeout_s)
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


@cache
def preforked() -> Preforked:
    """This process's own."""
    return Preforked()


def _at_loading(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_LOADING)}


def _load() -> None:
    for module in pkgutil.iter_modules(app.cli.__path__, "app.cli."):
        if module.name != "app.cli.__main__":
            import_module(module.name)
    for name in _LAZY:
        import_module(name)
    assert threading.active_count() == 1, "only the thread that forks lives on in what is forked"
    gc.freeze()


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork commands until nobody can ask for one. In a command's process: its words. Else None."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for commands
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _command(message, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _command(message: bytes, out: int, err: int, status: int) -> list[str]:
    """Fork once more: the one waits and tells what became of the other, which is the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.write(status, b"%d\n" % pid)
        _, ended = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err, status):
        os.close(descriptor)
    words, environ, directory = json.loads(message)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(directory)
    return ["feedback", *words]


if __name__ == "__main__":
    _load()
    with suppress(KeyboardInterrupt), socket.socket(fileno=int(sys.argv[1])) as channel:
        command = _serve(channel)
    if command is not None:
        sys.argv = command
        sys.exit(app.cli.main())
