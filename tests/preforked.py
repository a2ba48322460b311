"""The program's processes without the time that Python takes to load them.

A process that has loaded the program forks one for each command, worker or projector: with its own pid, variables,
output and exit code, as a shell's would have. Only the importing is not done again.
"""

import atexit
import ctypes
import gc
import json
import os
import pkgutil
import runpy
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
from typing import IO, NamedTuple

import app.cli
from tests.preloaded import build, compiler

_ROOT = Path(__file__).parents[1]
_MOST_BYTES = 2**20
_AT_LOADING = ("PYTHON", "RQ_", "LD_", "OTEL_")
"""Variables that count when a program is loaded begin so."""
_LAZY = ("persistence.sidecar.sqlite", "projections.process", "worker.process", "barrier.process")
"""What commands load when they need it."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Request(NamedTuple):
    """What to run, as `python -m` would. With it come three descriptors: stdout, stderr, and where to tell about it.

    Told are its pid and, in the end, its exit code. Of one that is adopted (by the process of this id, whose child it
    becomes, in a session of its own) only the pid.
    """

    module: str
    words: list[str]
    environ: dict[str, str]
    directory: str
    adopted_by: int = 0


class Preforked:
    """A process that forks others; it ends when this one does."""

    def __init__(self, library: str = "") -> None:
        """`library`: what is put before the C library of it, and of what it forks."""
        environ = dict(os.environ) | ({"LD_PRELOAD": library} if library else {})
        self._adopting = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preforked", str(theirs.fileno())],
                cwd=_ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it. What it forked goes on."""
        self._requests.close()
        self._process.wait()

    def run(
        self, module: str, words: Sequence[str], environ: Mapping[str, str], directory: Path, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run `python -m module` with these words: exit code (negative: the signal), stdout, stderr.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        request = _Request(module, list(words), dict(environ), os.fspath(directory))
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, self._send(request, out, err) as told:
            pid = int(told.readline())
            ready, _, _ = select.select([told], [], [], timeout_s)
            if not ready:
                os.kill(pid, signal.SIGKILL)
            code = int(told.readline())
            if not ready:
                raise subprocess.TimeoutExpired([module, *words], timeout_s)
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()

    def spawn(self, module: str, words: Sequence[str], environ: Mapping[str, str], log: IO[bytes]) -> int:
        """Start `python -m module` with these words: a child of this process, which ends with it; its pid."""
        request = _Request(module, list(words), dict(environ), os.fspath(Path.cwd()), os.getpid())
        with self._adopting:
            # For this moment, whoever of our descendants loses its parent becomes our child.
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                with self._send(request, log, log) as told:
                    return int(told.readline())
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _send(self, request: _Request, out: IO[bytes], err: IO[bytes]) -> IO[bytes]:
        """Where is told what becomes of it."""
        reading, writing = os.pipe()
        try:
            # One message: other threads may send theirs meanwhile.
            socket.send_fds(self._requests, [json.dumps(request).encode()], [out.fileno(), err.fileno(), writing])
        finally:
            os.close(writing)
        return os.fdopen(reading, "rb", 0)


def preforked(environ: Mapping[str, str]) -> Preforked | None:
    """Who forks processes that were loaded as with these variables: as this one, or on a disk that may fail."""
    loading, usual = _at_loading(environ), _at_loading(os.environ)
    if loading == usual:
        return _of_library("")
    # It heeds its other variable at each call only, so that a process that was forked has its own.
    faulty = str(build("faulty_disk")) if compiler() else ""
    return _of_library(faulty) if loading == usual | {"LD_PRELOAD": faulty} else None


@cache
def _of_library(library: str) -> Preforked:
    return Preforked(library)


def _at_loading(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_LOADING)}


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _load() -> None:
    for module in pkgutil.iter_modules(app.cli.__path__, "app.cli."):
        if module.name != "app.cli.__main__":
            import_module(module.name)
    for name in _LAZY:
        import_module(name)
    assert threading.active_count() == 1, "only the thread that forks lives on in what is forked"
    gc.freeze()


def _serve(requests: socket.socket) -> _Request | None:
    """Fork until nobody can ask for more. In a process that was asked for: what it is to run. Else None."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            request = _Request(*json.loads(message))
            _fork(request, *descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(request: _Request, out: int, err: int, told: int) -> None:
    """Fork once more, and return in the new process only. This one waits for it, or leaves it to its adopter."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    between = os.getpid()
    pid = os.fork()
    if pid:
        if not request.adopted_by:
            os.write(told, b"%d\n" % pid)
            _, ended = os.waitpid(pid, 0)
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    if request.adopted_by:
        os.setsid()
        while os.getppid() == between:
            time.sleep(0.001)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        assert os.getppid() == request.adopted_by, "its adopter has ended, or has not asked for it"
        os.write(told, b"%d\n" % os.getpid())
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err, told):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environ)
    time.tzset()
    os.chdir(request.directory)


if __name__ == "__main__":
    _load()
    with suppress(KeyboardInterrupt), socket.socket(fileno=int(sys.argv[1])) as channel:
        asked = _serve(channel)
    if asked is not None:
        sys.argv = ["feedback", *asked.words]
        runpy.run_module(asked.module, run_name="__main__")
