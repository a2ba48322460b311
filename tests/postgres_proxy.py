"""A TCP proxy in front of a PostgreSQL server: counts round trips, and loses what a network may lose."""

import contextlib
import socket
import threading
from io import BufferedReader
from types import TracebackType
from typing import Self

from tests.postgres import Postgres

_COMMITTED = b"COMMIT\0"


class PostgresProxy:
    """Listens on a port of its own and relays to the server's socket; a context manager."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._commits_to_lose = 0
        self._closed = False
        self.lost = threading.Event()
        """Set when the answer to a commit was lost."""
        self.flowing = threading.Event()
        """While it is not set, nothing reaches the client."""
        self.flowing.set()
        self.trips = 0
        """How often a client asked and waited for the answer."""
        self._accepting = threading.Thread(target=self._accept, name="postgres-proxy", daemon=True)
        self._accepting.start()

    def url(self, database: str, **options: str) -> str:
        """Where a store finds the database through this proxy."""
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        return self._server.url(database, host=self._host, **plain, **options)

    def lose_commit(self) -> None:
        """Cut the connection that hears next that it has committed, before it hears it."""
        with self._lock:
            self.lost.clear()
            self._commits_to_lose += 1

    def cut_all(self) -> None:
        """Break every connection there is; new ones are taken."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.break_off()
        for link in links:
            link.join()

    def is_to_be_lost(self) -> bool:
        """Whether this commit's answer is one to lose. For links."""
        with self._lock:
            if not self._commits_to_lose:
                return False
            self._commits_to_lose -= 1
        self.lost.set()
        return True

    def count_trip(self) -> None:
        """For links."""
        with self._lock:
            self.trips += 1

    def forget(self, link: "_Link") -> None:
        """A connection has ended. For links."""
        with self._lock:
            self._links.discard(link)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        self.flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server.socket)
            except OSError:
                server.close()
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                link.start()
                self._links.add(link)


class _Link:
    """One client's connection, and the proxy's own to the server for it; lives until either is gone."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._thread = threading.Thread(target=self._relay, name="postgres-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def break_off(self) -> None:
        """End the connection for both sides."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _relay(self) -> None:
        answers = threading.Thread(target=self._relay_answers, name="postgres-answers", daemon=True)
        answers.start()
        self._relay_requests()
        answers.join()
        self._client.close()
        self._server.close()
        self._proxy.forget(self)

    def _relay_requests(self) -> None:
        with contextlib.suppress(OSError), self._client.makefile("rb") as stream:
            # The first message, and no other, has no letter.
            message = _read(stream, letters=0)
            while message:
                if message[:1] in b"SQ":
                    self._proxy.count_trip()
                self._server.sendall(message)
                message = _read(stream, letters=1)
        self.break_off()

    def _relay_answers(self) -> None:
        with contextlib.suppress(OSError), self._server.makefile("rb") as stream:
            while message := _read(stream, letters=1):
                if message[:1] == b"C" and message[5:] == _COMMITTED and self._proxy.is_to_be_lost():
                    break
                self._proxy.flowing.wait()
                self._client.sendall(message)
        self.break_off()


def _read(stream: BufferedReader, *, letters: int) -> bytes:
    """The next message as it came; nothing when the other side has gone."""
    head = stream.read(letters + 4)
    size = int.from_bytes(head[letters:])
    return head + stream.read(size - 4) if len(head) == letters + 4 else b""
