"""Hosts of both kinds that hold Sessions open, behind one face; and a worker's side of a flush."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from redis import Redis

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.flushing import FlushReply, FlushRequest, decode_reply, encode_request
from feedback.live import Flush, LiveSessions
from feedback.live_aio import AsyncLiveSession, AsyncLiveSessions
from feedback.model import SessionIdentity

T = TypeVar("T")

LIFE = SessionIdentity(created_at=1_790_000_000_000, cwd="/w")
PATIENCE_S = 30.0


class Handle(Protocol):
    def close(self) -> None: ...


class Owner(Protocol):
    """Whoever has a list of flush requests."""

    @property
    def owner_id(self) -> str: ...


class Host(Owner, Protocol):
    """What `LiveSessions` and its twin have in common, as a thread sees it."""

    def register(
        self, session_id: str, identity: SessionIdentity, flush: Flush, *, timeout: float = PATIENCE_S
    ) -> Handle: ...

    def close(self) -> None: ...


class AsyncHost:
    """`AsyncLiveSessions` on an event loop in a thread of its own; the flushes that it is given run in threads."""

    def __init__(self, url: str, **options: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._live = AsyncLiveSessions.from_url(url, **options)  # type: ignore[arg-type]  # ttl or max_flushes
        self._ended = False

    @property
    def owner_id(self) -> str:
        return self._live.owner_id

    def register(
        self, session_id: str, identity: SessionIdentity, flush: Flush, *, timeout: float = PATIENCE_S
    ) -> Handle:
        async def in_thread() -> int | None:
            return await asyncio.to_thread(flush)

        return _AsyncHandle(self, self.run(self._live.register(session_id, identity, in_thread, timeout=timeout)))

    def close(self) -> None:
        if not self._ended:
            self.run(self._live.close())

    def end(self) -> None:
        """Close, and end the loop."""
        self.close()
        self._ended = True
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class _AsyncHandle:
    def __init__(self, host: AsyncHost, session: AsyncLiveSession) -> None:
        self._host = host
        self._session = session

    def close(self) -> None:
        self._host.run(self._session.close())


@contextmanager
def host_of(kind: str, url: str, **options: float) -> Iterator[Host]:
    """A host of one kind ("threads" or "asyncio"), closed in the end."""
    if kind == "threads":
        with LiveSessions.from_url(url, **options) as live:  # type: ignore[arg-type]  # ttl or max_flushes
            yield live
    else:
        with contextlib.closing(AsyncHost(url, **options)) as host:
            try:
                yield host
            finally:
                host.end()


class Asker:
    """A worker's side: pushes requests, reads what comes on its wake list."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.worker_id = uuid4().hex
        self._replies: dict[str, FlushReply] = {}

    def ask(
        self, owner: Owner, session_id: str = "s", identity: SessionIdentity = LIFE, *, seconds: float = PATIENCE_S
    ) -> str:
        """Ask for a flush; the request's id."""
        request = FlushRequest(
            request_id=uuid4().hex,
            worker_id=self.worker_id,
            session_id=session_id,
            session=identity,
            deadline=wall_clock_ms() + int(1000 * seconds),
        )
        self.redis.rpush(keys.flushes(owner.owner_id), encode_request(request))
        return request.request_id

    def reply(self, request_id: str) -> FlushReply:
        """Wait for the reply to a request."""
        while request_id not in self._replies:
            rung = self.redis.blpop([keys.wake(self.worker_id)], timeout=4)
            assert rung is not None, "no reply came"
            assert isinstance(rung[1], bytes)
            reply = decode_reply(rung[1])
            self._replies[reply.request_id] = reply
        return self._replies[request_id]

    def flushed(self, owner: Owner, session_id: str = "s") -> FlushReply:
        """Ask, and wait for the reply."""
        return self.reply(self.ask(owner, session_id))

    def pass_through(self, owner: Owner) -> None:
        """Wait until the host has taken in all that was sent before: it reads its list in order."""
        assert self.flushed(owner, f"nobody's {uuid4()}").status == "detached"

    def unanswered_soon(self, request_id: str) -> bool:
        """Whether nothing comes for it within a moment."""
        rung = self.redis.blpop([keys.wake(self.worker_id)], timeout=0.5)
        if rung is not None and isinstance(rung[1], bytes):
            reply = decode_reply(rung[1])
            self._replies[reply.request_id] = reply
        return request_id not in self._replies

    def unanswered(self, request_id: str) -> bool:
        """Whether nothing has come for it so far."""
        while isinstance(ring := self.redis.lpop(keys.wake(self.worker_id)), bytes):
            reply = decode_reply(ring)
            self._replies[reply.request_id] = reply
        return request_id not in self._replies


class Gate:
    """A flush that waits until the test opens it."""

    def __init__(self, durable: int | None = 1) -> None:
        self.calls = 0
        self._durable = durable
        self._entered = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> int | None:
        self.calls += 1
        self._entered.set()
        assert self._open.wait(PATIENCE_S), "the test never opened the gate"
        return self._durable

    def wait(self) -> None:
        """Until a flush has begun."""
        assert self._entered.wait(PATIENCE_S), "no flush began"

    def open(self) -> None:
        self._open.set()


def registration(redis: Redis, session_id: str = "s") -> dict[bytes, bytes]:
    """What the server holds about a live Session."""
    return dict(redis.execute_command("HGETALL", keys.live(session_id)))
