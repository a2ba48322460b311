"""Puts through the gateway against puts of the Python client: one at a time, and many at once."""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from urllib.parse import quote

import msgspec

from app.processes import Child
from app.system import child_environ
from benchmarks.deployment import deployed
from benchmarks.figures import Figure, Target, compared, figure, tail
from benchmarks.measure import Run, in_blocks, rate, wait_until
from benchmarks.puts import Rater
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback import AsyncFeedbackClient, Item, Ok, Rating
from feedback.settings import Settings
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile

_UNIT = "µs"
_RATE = "puts/s"
HOST = "127.0.0.1"
_STOP_S = 10.0
_AT_ONCE = 32
_RATINGS: tuple[Rating, Rating] = ("positive", "negative")


def http_puts(run: Run) -> list[Figure]:
    """Puts over HTTP, with a token and the log of requests, at most twice the latency of the Python client's."""
    (crowded, *sessions), messages = session_ids(run.size(33, 5)), message_ids(2 * _AT_ONCE)
    with run.home() as home, deployed(Path(home)) as system:
        write_sessions(Path(system.settings.sessions), [crowded, *sessions], len(messages))
        with gateway_running(system.settings, Path(home)) as (port, token):
            ours, theirs = messages[:_AT_ONCE], messages[_AT_ONCE:]
            direct = Rater(system.client, [(session, message) for message in ours for session in sessions])
            http = HttpRater(port, token, [(session, message) for message in theirs for session in sessions])
            for _ in range(run.size(200, 4)):
                direct()
                http()
            rounds, each = run.size(20, 2), run.size(50, 5)
            put, over_http, health = in_blocks((direct, http, http.ask_health), rounds=rounds, each=each)
            crowds = _Crowds(system.settings.redis_url, port, token, crowded)
            amount = run.size(2000, 2 * _AT_ONCE)
            pairs = [
                (rate(crowds.direct(amount), amount), rate(crowds.http(amount), amount)) for _ in range(run.size(5, 2))
            ]
            http.close()
    return [
        figure("Python client", _UNIT, put),
        compared("HTTP", _UNIT, over_http, "Python client", put, target=Target("at most", 2)),
        tail("HTTP, 99th percentile", _UNIT, over_http),
        figure("a part of it: a request that asks nobody", _UNIT, health),
        figure(f"Python client, {_AT_ONCE} at once", _RATE, [[one] for one, _ in pairs]),
        compared(
            f"HTTP, {_AT_ONCE} connections",
            _RATE,
            [[two] for _, two in pairs],
            f"Python client, {_AT_ONCE} at once",
            [[one] for one, _ in pairs],
        ),
    ]


class HttpRater:
    """As `Rater`, through the gateway, on one connection that stays open."""

    def __init__(self, port: int, token: str, targets: Sequence[tuple[str, str]]) -> None:
        self._connection = HTTPConnection(HOST, port)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._paths = cycle([_path(*target) for target in targets])
        self._items: dict[str, Item] = {}

    def __call__(self) -> None:
        """One put that changes something, from the request to its answer."""
        path = next(self._paths)
        known = self._items.get(path)
        body = b'{"rating":"negative"}' if known and known.rating == "positive" else b'{"rating":"positive"}'
        condition = {"If-Match": f'"{known.version}"'} if known else {"If-None-Match": "*"}
        self._items[path] = msgspec.json.decode(self._ask("PUT", path, body, self._headers | condition), type=Item)

    def ask_health(self) -> None:
        """What HTTP costs by itself."""
        self._ask("GET", "/healthz", None, {})

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        document = answer.read()
        assert answer.status in (200, 201), document
        return document


class _Crowds:
    """So many who put at once, each its own message of one Session, again and again."""

    def __init__(self, redis_url: str, port: int, token: str, session: str) -> None:
        self._redis_url = redis_url
        self._port = port
        self._token = token
        self._session = session
        self._versions: dict[str, str] = {}

    def direct(self, amount: int) -> Callable[[], None]:
        """So many puts in all, with the asynchronous client."""

        async def put(client: AsyncFeedbackClient, message: str, times: int) -> None:
            for turn in range(times):
                version = self._versions.get(message)
                result = await client.put(
                    self._session, message, _RATINGS[turn % 2], note=str(turn), if_version=version
                )
                assert isinstance(result, Ok), result
                assert isinstance(result.value, Item), result
                self._versions[message] = result.value.version

        async def run() -> None:
            async with AsyncFeedbackClient.from_url(self._redis_url) as client:
                await asyncio.gather(*(put(client, message, amount // _AT_ONCE) for message in message_ids(_AT_ONCE)))

        return lambda: asyncio.run(run())

    def http(self, amount: int) -> Callable[[], None]:
        """The same over HTTP."""

        async def put(message: str, times: int) -> None:
            reader, writer = await asyncio.open_connection(HOST, self._port)
            for turn in range(times):
                writer.write(self._request(message, turn))
                status = await reader.readuntil(b"\r\n\r\n")
                assert b" 20" in status[:12], status
                length = int(status.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                item = msgspec.json.decode(await reader.readexactly(length), type=Item)
                self._versions[message] = item.version
            writer.close()
            await writer.wait_closed()

        async def run() -> None:
            await asyncio.gather(*(put(message, amount // _AT_ONCE) for message in message_ids(_AT_ONCE)))

        return lambda: asyncio.run(run())

    def _request(self, message: str, turn: int) -> bytes:
        body = msgspec.json.encode({"rating": _RATINGS[turn % 2], "note": str(turn)})
        version = self._versions.get(message)
        condition = f'If-Match: "{version}"' if version else "If-None-Match: *"
        head = (
            f"PUT {_path(self._session, message)} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {self._token}\r\n"
            f"{condition}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@contextmanager
def gateway_running(settings: Settings, home: Path) -> Iterator[tuple[int, str]]:
    """A gateway's process over a deployment: its port, and a token for it."""
    tokens = home / "tokens.json"
    token, _ = TokenFile(tokens).create("benchmark", tuple(Scope), now_ms=0)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    more = {"gateway_port": port, "gateway_tokens": str(tokens), "gateway_rate": 1_000_000.0}
    environ = child_environ(msgspec.structs.replace(settings, **more))
    command = (sys.executable, "-P", "-m", "app.cli", "gateway")
    child = Child("gateway", command, log=home / "gateway.log", environ=environ)
    child.start()
    try:
        wait_until(lambda: _answers(child, port), "the gateway answers")
        yield port, token
    finally:
        child.stop(_STOP_S)


def _answers(child: Child, port: int) -> bool:
    if child.poll() is not None:
        raise RuntimeError(f"the gateway ended: {child.log_tail()}")
    try:
        with closing(HTTPConnection(HOST, port)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False


def _path(session: str, message: str) -> str:
    return f"/sessions/{quote(session, safe='')}/feedback/{quote(message, safe='')}"
