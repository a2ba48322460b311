"""Live Sessions of hosts that run asyncio: `feedback.live`, awaited."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeAlias
from uuid import uuid4

from redis import asyncio as aio

from feedback import connection, keys
from feedback.calls import Call, wall_clock_ms
from feedback.errors import FeedbackError
from feedback.live import MAX_FLUSHES, REGISTER_TIMEOUT_S
from feedback.live_core import DEFAULT_TTL_S, LiveCore
from feedback.live_requests import Outcome, Registration, check_max_flushes, check_registration, counted, raised
from feedback.model import SessionIdentity
from feedback.requests import check_timeout

AsyncFlush: TypeAlias = Callable[[], Awaitable[int | None]]
"""As `feedback.live.Flush`. What blocks, as fsync does, belongs in a thread (`asyncio.to_thread`)."""


class AsyncLiveSession:
    """One registered Session; close it (or leave its `async with` block) when the log is no longer held open."""

    def __init__(
        self, owner: "AsyncLiveSessions", registration: Registration[AsyncFlush], ended: asyncio.Event
    ) -> None:
        self._owner = owner
        self._registration = registration
        self._ended = ended

    @property
    def session_id(self) -> str:
        return self._registration.session_id

    @property
    def identity(self) -> SessionIdentity:
        return self._registration.identity

    async def close(self) -> None:
        """Deregister the Session, as `feedback.live.LiveSession.close`."""
        self._owner._release(self._registration)  # noqa: SLF001 - the handle's other half
        if not self._owner._is_inside(self._registration):  # noqa: SLF001
            await self._ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncLiveSession({self.session_id!r})"


class AsyncLiveSessions:
    """`LiveSessions` for asyncio: the same arguments, promises and exceptions; an async context manager.

    Belongs to the event loop of its first `register`, and keeps its promises while that loop is not blocked.
    """

    def __init__(
        self,
        redis: aio.Redis,
        *,
        ttl: float = DEFAULT_TTL_S,
        max_flushes: int = MAX_FLUSHES,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Use the server of an existing redis-py asyncio client, which stays the caller's."""
        self._core: LiveCore[AsyncFlush] = LiveCore(uuid4().hex, ttl, clock_ms=clock_ms)
        self._redis = connection.like_async(redis)
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(check_max_flushes(max_flushes))
        self._flushes: dict[asyncio.Task[None], Registration[AsyncFlush]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, *, ttl: float = DEFAULT_TTL_S, max_flushes: int = MAX_FLUSHES) -> Self:
        """Connect as `feedback.connection.connect` does; nothing is sent until the first `register`.

        Raises:
            QueueUnavailable: the URL is not one.
        """
        return cls(connection.connect_async(url), ttl=ttl, max_flushes=max_flushes)

    @property
    def owner_id(self) -> str:
        """Names this object on the server."""
        return self._core.owner_id

    async def register(
        self, session_id: str, identity: SessionIdentity, flush: AsyncFlush, *, timeout: float = REGISTER_TIMEOUT_S
    ) -> AsyncLiveSession:
        """Register a Session, as `feedback.live.LiveSessions.register`; `flush` is called in a task of its own."""
        check_registration(session_id, identity)
        timeout = check_timeout(timeout)
        settled, ended = asyncio.Event(), asyncio.Event()
        registration = Registration(session_id, identity, flush, settled=settled, ended=ended)
        due = self._core.register(registration)
        if self._keeper is None or self._listener is None:
            self._keeper = asyncio.create_task(self._keep(), name="feedback-live-keeper")
            self._listener = asyncio.create_task(self._listen(), name="feedback-live-listener")
        self._changed.set()
        if due:
            self._start(registration)
        try:
            async with asyncio.timeout(timeout):
                await settled.wait()
        except TimeoutError:
            registration.error = self._core.withdraw(registration, timeout)
        except BaseException:
            self._release(registration)
            raise
        if registration.error is not None:
            self._release(registration)
            error: FeedbackError = registration.error
            raise error
        return AsyncLiveSession(self, registration, ended)

    async def close(self) -> None:
        """Let go of all Sessions, as `feedback.live.LiveSessions.close`."""
        self._core.close()
        self._changed.set()
        if self._keeper is not None and self._listener is not None:
            await asyncio.wait((self._keeper,))
            self._listener.cancel()
            await asyncio.wait((self._listener,))
        await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _release(self, registration: Registration[AsyncFlush]) -> None:
        self._core.requests.close(registration)
        self._changed.set()

    def _is_inside(self, registration: Registration[AsyncFlush]) -> bool:
        """Whether the caller is the Session's own flush."""
        task = asyncio.current_task()
        return task is not None and self._flushes.get(task) is registration

    async def _keep(self) -> None:
        while (call := await self._next_call()) is not None:
            try:
                reply = await self._redis.execute_command(*call.args)
            except Exception as error:  # noqa: BLE001 - whatever it is, Sessions have to stay registered
                self._core.failed(error)
            else:
                self._core.answered(reply)

    async def _next_call(self) -> Call | None:
        while (call := self._core.next_call()) is None and not self._core.finished:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._core.idle_s()):
                    await self._changed.wait()
        return call

    async def _listen(self) -> None:
        command = ("BLPOP", keys.flushes(self.owner_id), connection.BLOCK_S)
        while self._core.listening:
            try:
                popped = await self._redis.execute_command(*command)
            except Exception as error:  # noqa: BLE001 - as in `_keep`
                pause = self._core.deaf(error)
                self._changed.set()
                await asyncio.sleep(pause)
                continue
            due = self._core.receive(popped[1] if popped else None)
            self._changed.set()
            if due is not None:
                self._start(due)

    def _start(self, registration: Registration[AsyncFlush]) -> None:
        task = asyncio.create_task(self._flush(registration), name="feedback-flush")
        self._flushes[task] = registration
        task.add_done_callback(self._flushes.pop)

    async def _flush(self, registration: Registration[AsyncFlush]) -> None:
        async with self._slots:
            if not self._core.requests.begin(registration):
                return
            outcome = Outcome("failed", reason="the flush was cancelled")
            try:
                outcome = counted(await registration.flush())
            except Exception as error:  # noqa: BLE001 - the worker's answer
                outcome = raised(error)
            finally:
                again = self._core.requests.finish(registration, outcome)
                self._changed.set()
                if again:
                    self._start(registration)
