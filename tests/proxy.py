"""A TCP proxy in front of a Redis server that loses, or holds back, what a network may: one chosen message.

It reads the client's requests one by one, so a test can say which one it means; replies pass as they come.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum
from io import BufferedReader
from types import TracebackType
from typing import Self, TypeAlias

from redis.connection import parse_url

from feedback.scripting import Script

Request: TypeAlias = tuple[bytes, ...]
"""One Redis command: name and arguments."""
Matcher: TypeAlias = Callable[[Request], bool]

_PATIENCE_S = 30.0
_CHUNK = 1 << 16
_POLL_S = 0.05


def runs(script: Script) -> Matcher:
    """Requests that run this Lua script."""
    names = {script.sha.encode(), script.source.encode()}
    return lambda request: request[0].removesuffix(b"_RO") in (b"EVALSHA", b"EVAL") and request[1] in names


def names(command: str) -> Matcher:
    """Requests of this name."""
    return lambda request: request[0].upper() == command.upper().encode()


class _Side(Enum):
    REQUEST = "before the request reaches the server"
    REPLY = "when the server has answered, before the client hears of it"


class Trap:
    """One message that the proxy stops at: it is held until the test says what becomes of it."""

    def __init__(self, matches: Matcher, nth: int, side: _Side) -> None:
        self.side = side
        self._matches = matches
        self._left = nth
        self._sprung = threading.Event()
        self._decided = threading.Event()
        self._cut = False

    def wait(self) -> None:
        """Until the message is held."""
        assert self._sprung.wait(_PATIENCE_S), f"no such message came: {self.side.value}"

    @property
    def is_sprung(self) -> bool:
        """Whether the message came."""
        return self._sprung.is_set()

    def release(self) -> None:
        """Let the message through."""
        self._decided.set()

    def cut(self) -> None:
        """Lose the message, and its connection with it."""
        self._cut = True
        self._decided.set()

    def is_for(self, request: Request) -> bool:
        """Whether this is the request that the trap was set for; counts it. The proxy asks under its lock."""
        if self._left > 0 and self._matches(request):
            self._left -= 1
            return self._left == 0
        return False

    def hold(self) -> bool:
        """Block until the test decides; whether the message goes on."""
        self._sprung.set()
        self._decided.wait()
        return not self._cut


class Proxy:
    """Listens on a port of its own and relays to the server of `url`; a context manager."""

    def __init__(self, url: str) -> None:
        target = parse_url(url)
        self._server = (str(target["host"]), int(target["port"]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._links: set[_Link] = set()
        self._closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    def hold_request(self, matches: Matcher, *, nth: int = 1) -> Trap:
        """Stop at the nth matching request from now on, before the server sees it."""
        return self._set(Trap(matches, nth, _Side.REQUEST))

    def hold_reply(self, matches: Matcher, *, nth: int = 1) -> Trap:
        """Stop at the reply to the nth matching request from now on: the server has done it."""
        return self._set(Trap(matches, nth, _Side.REPLY))

    def lose_reply(self, matches: Matcher, *, nth: int = 1) -> Trap:
        """Cut the connection of the nth matching request when the server has answered it."""
        trap = Trap(matches, nth, _Side.REPLY)
        trap.cut()
        return self._set(trap)

    def forget_traps(self) -> None:
        """Let every message pass from now on."""
        with self._lock:
            traps, self._traps = self._traps, []
        for trap in traps:
            trap.release()

    def cut_all(self) -> None:
        """Break every connection there is; new ones are taken."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.break_off()
        for link in links:
            link.join()

    def freeze(self) -> None:
        """Become a black hole: connections stand and are taken, and nothing comes through them, either way."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything through that was held up."""
        self._flowing.set()

    def flows(self, patience_s: float) -> bool:
        """Whether messages come through, now or within so many seconds."""
        return self._flowing.wait(patience_s)

    def close(self) -> None:
        """Take no more connections, break those there are, let nobody wait."""
        self._closed = True
        self.thaw()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            traps = list(self._traps)
        for trap in traps:
            trap.cut()
        self.cut_all()

    def trap_of(self, request: Request) -> Trap | None:
        """The trap that this request springs."""
        with self._lock:
            return next((trap for trap in self._traps if trap.is_for(request)), None)

    def forget(self, link: "_Link") -> None:
        """A connection has ended by itself."""
        with self._lock:
            self._links.discard(link)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _set(self, trap: Trap) -> Trap:
        with self._lock:
            self._traps.append(trap)
        return trap

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                # Whoever finds it among the links may join it: it has to run by then.
                link.start()
                self._links.add(link)


class _Link:
    """One client's connection, and the proxy's own to the server for it; lives until either is gone."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._reply_traps: list[Trap] = []
        self._broken = False
        self._thread = threading.Thread(target=self._relay, name="proxy-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def break_off(self) -> None:
        """End the connection for both sides, and the relaying by it."""
        self._broken = True
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _relay(self) -> None:
        replies = threading.Thread(target=self._guard, args=(self._relay_replies,), name="proxy-replies", daemon=True)
        replies.start()
        self._guard(self._relay_requests)
        replies.join()
        self._client.close()
        self._server.close()
        self._proxy.forget(self)

    def _guard(self, relay: Callable[[], None]) -> None:
        # Either side may go at any time: that is what this proxy is for.
        with contextlib.suppress(OSError):
            relay()
        self.break_off()

    def _relay_requests(self) -> None:
        with self._client.makefile("rb") as stream:
            while (read := _read_request(stream)) is not None:
                raw, request = read
                trap = self._proxy.trap_of(request)
                if trap is not None and trap.side is _Side.REPLY:
                    self._reply_traps.append(trap)
                elif trap is not None and not trap.hold():
                    return
                self._pass(self._server, raw)

    def _relay_replies(self) -> None:
        # Nobody sends while a reply is still to come, so what comes after a trapped request answers it, or what was
        # sent together with it.
        while chunk := self._server.recv(_CHUNK):
            traps, self._reply_traps = self._reply_traps, []
            passes = [trap.hold() for trap in traps]
            if not all(passes):
                return
            self._pass(self._client, chunk)

    def _pass(self, to: socket.socket, message: bytes) -> None:
        while not self._proxy.flows(_POLL_S):
            if self._broken:
                return
        to.sendall(message)


def _read_request(stream: BufferedReader) -> tuple[bytes, Request] | None:
    """The next request as it came and as its parts; None when the client has gone."""
    head = stream.readline()
    if not head.endswith(b"\r\n"):
        return None
    raw, parts = [head], []
    for _ in range(int(head[1:])):
        size = stream.readline()
        part = stream.read(int(size[1:]) + 2) if size.endswith(b"\r\n") else b""
        if not part.endswith(b"\r\n"):
            return None
        raw += (size, part)
        parts.append(part[:-2])
    return b"".join(raw), tuple(parts)
