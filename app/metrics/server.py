"""A small HTTP server for scrapers and probes, in threads of its own: who asks never holds up the work."""

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct

from feedback.errors import SettingsInvalid

_MOST_AT_ONCE = 8
_PATIENCE_S = 5.0
"""Seconds that one request may take to arrive, and its reader to take the answer."""


class Page(Struct, frozen=True):
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[str], Page]]
"""By path; each is given the request's `Accept` header."""


class PageServer:
    """Serves pages until it is closed. At most eight requests at once; more are closed unanswered."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """Listens already when this returns; port 0 is any free one.

        Raises:
            SettingsInvalid: address or port cannot be had.
        """
        try:
            self._server = _Server(host, port, pages)
        except OSError as error:
            raise SettingsInvalid(f"metrics_host, metrics_port: {host}:{port}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._server.server_address[1]
        return port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._room = threading.Semaphore(_MOST_AT_ONCE)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own would look its host's name up in the DNS.
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: object, client_address: object) -> bool:
        del request, client_address
        return self._room.acquire(blocking=False)

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]  # narrower than the stubs: it is TCP
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had
            self._room.release()
            raise

    def process_request_thread(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]  # narrower than the stubs: it is TCP
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever went away in the midst of an answer is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server
    server_version = "session-feedback"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Probes come every few seconds: they are no news either."""

    def _answer(self, *, with_body: bool) -> None:
        found = self.server.pages.get(urlsplit(self.path).path)
        page = Page(b"not found\n", status=HTTPStatus.NOT_FOUND) if found is None else self._made(found)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def _made(self, found: Callable[[str], Page]) -> Page:
        try:
            return found(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            return Page(f"{type(error).__name__}\n".encode(), status=HTTPStatus.INTERNAL_SERVER_ERROR)
