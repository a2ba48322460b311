"""Live Sessions of hosts that run threads: registered while they are open, flushed when a worker asks."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeAlias
from uuid import uuid4

from redis import Redis

from feedback import connection, keys
from feedback.calls import Call, wall_clock_ms
from feedback.errors import FeedbackError
from feedback.live_core import DEFAULT_TTL_S, LiveCore
from feedback.live_requests import Outcome, Registration, check_max_flushes, check_registration, counted, raised
from feedback.model import SessionIdentity
from feedback.requests import check_timeout

Flush: TypeAlias = Callable[[], int | None]
"""Puts a Session's log on stable storage; how many events of it are durable, or None when nobody counts them."""

REGISTER_TIMEOUT_S = 5.0
MAX_FLUSHES = 4


class LiveSession:
    """One registered Session; close it (or leave its `with` block) when the host no longer holds the log open."""

    def __init__(self, owner: "LiveSessions", registration: Registration[Flush], ended: threading.Event) -> None:
        self._owner = owner
        self._registration = registration
        self._ended = ended

    @property
    def session_id(self) -> str:
        return self._registration.session_id

    @property
    def identity(self) -> SessionIdentity:
        return self._registration.identity

    def close(self) -> None:
        """Deregister the Session. When this returns, its flush neither runs nor will be called again.

        Flush the log before: from now on workers read what stands on disk. Does not wait for the server, never
        raises, and may be repeated. Called from the Session's own flush, it does not wait for that.
        """
        self._owner._release(self._registration)  # noqa: SLF001 - the handle's other half
        if not self._owner._is_inside(self._registration):  # noqa: SLF001
            self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LiveSession({self.session_id!r})"


class LiveSessions:
    """Tells workers which Sessions this process holds open, and flushes one when they ask (CONTRACT, "Rules of `put`").

    Safe to share between threads; use as a context manager. Two daemon threads talk to the server from the first
    `register` on; the host never hears of its troubles but by `register` itself. A process that dies without
    closing is forgotten within `ttl` seconds.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        ttl: float = DEFAULT_TTL_S,
        max_flushes: int = MAX_FLUSHES,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Use the server of an existing redis-py client, which stays the caller's.

        A process that falls silent is forgotten after `ttl` seconds (0.1 or more). `max_flushes` Sessions are
        flushed at once, each in its own thread; a Session never twice at once.

        Raises:
            InvalidRequest: `ttl` is not a number of seconds, or `max_flushes` not a positive integer.
        """
        self._core: LiveCore[Flush] = LiveCore(uuid4().hex, ttl, clock_ms=clock_ms)
        self._redis = connection.like(redis)
        self._changed = threading.Condition()
        """Guards the core; the keeper waits on it."""
        self._pool = ThreadPoolExecutor(check_max_flushes(max_flushes), thread_name_prefix="feedback-flush")
        self._keeper = threading.Thread(target=self._keep, name="feedback-live-keeper", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="feedback-live-listener", daemon=True)
        self._stopped = threading.Event()
        self._inside = threading.local()

    @classmethod
    def from_url(cls, url: str, *, ttl: float = DEFAULT_TTL_S, max_flushes: int = MAX_FLUSHES) -> Self:
        """Connect as `feedback.connection.connect` does; nothing is sent until the first `register`.

        Raises:
            QueueUnavailable: the URL is not one.
        """
        return cls(connection.connect(url), ttl=ttl, max_flushes=max_flushes)

    @property
    def owner_id(self) -> str:
        """Names this object on the server."""
        return self._core.owner_id

    def register(
        self, session_id: str, identity: SessionIdentity, flush: Flush, *, timeout: float = REGISTER_TIMEOUT_S
    ) -> LiveSession:
        """Say that this process holds the Session's log open under this header identity.

        `flush` is called in a thread of this object, perhaps before this returns. What it raises is the worker's
        answer. The last registration of an id wins, here and among processes: the log's write lock is the arbiter.

        Raises:
            InvalidRequest: an argument has no form on the wire.
            QueueUnavailable: the server did not take it within `timeout` seconds; the Session is not registered.
            ShuttingDown: this object is closed.
        """
        check_registration(session_id, identity)
        timeout = check_timeout(timeout)
        settled, ended = threading.Event(), threading.Event()
        registration = Registration(session_id, identity, flush, settled=settled, ended=ended)
        with self._changed:
            due = self._core.register(registration)
            if self._keeper.ident is None:
                self._keeper.start()
                self._listener.start()
            self._changed.notify()
        if due:
            self._start(registration)
        try:
            in_time = settled.wait(min(timeout, threading.TIMEOUT_MAX))
        except BaseException:
            self._release(registration)
            raise
        if not in_time or registration.error is not None:
            self._refuse(registration, timeout)
        return LiveSession(self, registration, ended)

    def close(self) -> None:
        """Let go of all Sessions: wait for the flushes that run, answer the others, and take the owner off the server.

        Never raises; a server that does not answer is given up, and forgets by itself. Not from within a flush.
        """
        with self._changed:
            self._core.close()
            self._changed.notify()
        if self._keeper.ident is not None:
            self._keeper.join()
            self._stopped.set()
            self._listener.join()
        self._pool.shutdown()
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _refuse(self, registration: Registration[Flush], timeout: float) -> None:
        with self._changed:
            error: FeedbackError = registration.error or self._core.withdraw(registration, timeout)
        self._release(registration)
        raise error

    def _release(self, registration: Registration[Flush]) -> None:
        with self._changed:
            self._core.requests.close(registration)
            self._changed.notify()

    def _is_inside(self, registration: Registration[Flush]) -> bool:
        """Whether the caller is the Session's own flush."""
        return getattr(self._inside, "registration", None) is registration

    def _keep(self) -> None:
        while (call := self._next_call()) is not None:
            try:
                reply = self._redis.execute_command(*call.args)
            except Exception as error:  # noqa: BLE001 - whatever it is, Sessions have to stay registered
                with self._changed:
                    self._core.failed(error)
            else:
                with self._changed:
                    self._core.answered(reply)

    def _next_call(self) -> Call | None:
        with self._changed:
            while (call := self._core.next_call()) is None and not self._core.finished:
                self._changed.wait(self._core.idle_s())
            return call

    def _listen(self) -> None:
        command = ("BLPOP", keys.flushes(self.owner_id), connection.BLOCK_S)
        while self._core.listening:
            try:
                popped = self._redis.execute_command(*command)
            except Exception as error:  # noqa: BLE001 - as in `_keep`
                with self._changed:
                    pause = self._core.deaf(error)
                    self._changed.notify()
                self._stopped.wait(pause)
                continue
            with self._changed:
                due = self._core.receive(popped[1] if popped else None)
                self._changed.notify()
            if due is not None:
                self._start(due)

    def _start(self, registration: Registration[Flush]) -> None:
        # A pool that takes no more was closed, and who waited has been answered.
        with contextlib.suppress(RuntimeError):
            self._pool.submit(self._flush, registration)

    def _flush(self, registration: Registration[Flush]) -> None:
        with self._changed:
            begun = self._core.requests.begin(registration)
        if not begun:
            return
        self._inside.registration = registration
        outcome = _outcome_of(registration.flush)
        self._inside.registration = None
        with self._changed:
            again = self._core.requests.finish(registration, outcome)
            self._changed.notify()
        if again:
            self._start(registration)


def _outcome_of(flush: Flush) -> Outcome:
    try:
        return counted(flush())
    except BaseException as error:  # noqa: BLE001 - the worker's answer, even when it would end this thread
        return raised(error)
