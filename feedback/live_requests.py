"""Which Sessions a host holds open, whose flush is due, and what each request is answered (no I/O).

A request waits with its Session until a flush begins after it came; one flush answers all that wait by then.
"""

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from feedback.errors import FeedbackError, InvalidRequest
from feedback.flushing import FlushReply, FlushRequest, FlushStatus, decode_request
from feedback.model import MOST_MILLISECONDS, SessionIdentity
from feedback.requests import check_text

logger = logging.getLogger(__name__)

F = TypeVar("F")

MOST_PENDING = 10_000
"""Requests that may wait for a flush. Past that they are dropped: the worker asks again."""

_MOST_SAID = 500
_MOST_EVENTS = 2**63 - 1


class Signal(Protocol):
    """Something to wait on: a `threading.Event` or an `asyncio.Event`."""

    def set(self) -> None: ...


class Outcome(Struct, frozen=True):
    """How a flush went."""

    status: FlushStatus
    durable: int | None = None
    reason: str = ""


DETACHED = Outcome("detached")


def counted(value: object) -> Outcome:
    """What a flush that returned says: how many events are durable, or that the host does not count them."""
    if value is None:
        return Outcome("flushed")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_EVENTS:
        return Outcome("flushed", int(value))
    return Outcome("failed", reason=f"flush returned {type(value).__name__}: neither a count of events nor None")


def raised(error: BaseException) -> Outcome:
    """What a flush that raised comes to: the exception's type and message."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a host's exception may be broken itself
        message = "(it has no message)"
    # Cut, and without lone surrogates, which have no form on the wire.
    said = f"{type(error).__name__}: {message}"[:_MOST_SAID].encode(errors="backslashreplace").decode()
    return Outcome("failed", reason=said)


def check_registration(session_id: object, identity: SessionIdentity) -> None:
    """Refuse what has no form on the wire, as `InvalidRequest`."""
    if not isinstance(session_id, str):
        raise InvalidRequest("$.sessionId", f"expected a string, got {type(session_id).__name__}")
    check_text("$.sessionId", session_id)
    created_at: object = identity.created_at
    if isinstance(created_at, bool) or not isinstance(created_at, int):
        raise InvalidRequest("$.createdAt", f"expected milliseconds as an integer, got {type(created_at).__name__}")
    if not 0 <= created_at <= MOST_MILLISECONDS:
        raise InvalidRequest("$.createdAt", f"expected 0 to {MOST_MILLISECONDS}")
    check_text("$.cwd", identity.cwd)


def check_max_flushes(count: object) -> int:
    """How many Sessions are flushed at once: one or more, else `InvalidRequest`."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidRequest("max_flushes", "expected a positive integer")
    return count


class Registration(Generic[F]):
    """One Session that the host holds open, from `register` until its handle is closed or replaced."""

    def __init__(self, session_id: str, identity: SessionIdentity, flush: F, *, settled: Signal, ended: Signal) -> None:
        """`settled` is set when the server knows it (or `error` says why not), `ended` when it is closed and
        its flush neither runs nor will be called."""
        self.session_id = session_id
        self.identity = identity
        self.flush = flush
        self.settled = settled
        self.ended = ended
        self.error: FeedbackError | None = None
        self.closed = False
        self.due = False
        """A flush was asked for and has not begun."""
        self.waiting: list[FlushRequest] = []
        self.served: list[FlushRequest] = []
        """What the running flush answers; empty when none runs."""


class Requests(Generic[F]):
    """The registrations of one host, and the requests that wait at them. For one thread at a time."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        answer: Callable[[FlushRequest, FlushReply], None],
        left: Callable[[str], None],
    ) -> None:
        """`answer` is told what to reply to whom, `left` which Session is held no more (perhaps repeatedly)."""
        self._clock_ms = clock_ms
        self._answer = answer
        self._left = left
        self._pending = 0
        self._running = 0
        self.held: dict[str, Registration[F]] = {}

    @property
    def flushing(self) -> bool:
        """Whether a flush runs."""
        return self._running > 0

    def add(self, registration: Registration[F]) -> bool:
        """Hold a Session, in the place of what was held under its id; whether its flush is due at once."""
        former = self.held.get(registration.session_id)
        self.held[registration.session_id] = registration
        if former is None:
            return False
        former.closed = True
        if not former.served:
            former.ended.set()
        due = False
        for request in self._take(former):
            due |= self._put(request)
        return due

    def close(self, registration: Registration[F]) -> None:
        """Hold it no more. A flush that runs goes on to its end, and what came meanwhile is answered after it."""
        if not registration.closed:
            registration.closed = True
            if not registration.served:
                self._end(registration)

    def receive(self, data: bytes) -> Registration[F] | None:
        """Take in what a worker sent; the registration whose flush is due by it, if it was not before."""
        try:
            request = decode_request(data)
        except msgspec.MsgspecError as error:
            logger.warning("malformed flush request dropped: %s", error)
            return None
        return self.held[request.session_id] if self._put(request) else None

    def begin(self, registration: Registration[F]) -> bool:
        """Begin a due flush; False when nobody waits for it any more."""
        registration.due = False
        now_ms = self._clock_ms()
        registration.served = [request for request in self._take(registration) if request.deadline > now_ms]
        self._running += bool(registration.served)
        return bool(registration.served)

    def finish(self, registration: Registration[F], outcome: Outcome) -> bool:
        """Answer whom the flush served; whether the next one is due."""
        for request in registration.served:
            self._reply(request, outcome)
        registration.served = []
        self._running -= 1
        if registration.closed:
            self._end(registration)
        registration.due = bool(registration.waiting)
        return registration.due

    def _put(self, request: FlushRequest) -> bool:
        """Let a request wait, or settle it; whether a flush is due by it."""
        if request.deadline <= self._clock_ms():
            logger.info("flush request past its deadline dropped session=%r", request.session_id)
            return False
        registration = self.held.get(request.session_id)
        if registration is None or registration.identity != request.session:
            if registration is None:
                # A worker that still finds it here did so by a registration that should be gone.
                self._left(request.session_id)
            self._reply(request, DETACHED)
            return False
        if self._pending >= MOST_PENDING:
            logger.warning("flush request dropped, too many wait session=%r", request.session_id)
            return False
        self._pending += 1
        registration.waiting.append(request)
        if registration.due or registration.served:
            return False
        registration.due = True
        return True

    def _take(self, registration: Registration[F]) -> list[FlushRequest]:
        taken, registration.waiting = registration.waiting, []
        self._pending -= len(taken)
        return taken

    def _end(self, registration: Registration[F]) -> None:
        if self.held.get(registration.session_id) is registration:
            del self.held[registration.session_id]
            self._left(registration.session_id)
        for request in self._take(registration):
            self._reply(request, DETACHED)
        registration.ended.set()

    def _reply(self, request: FlushRequest, outcome: Outcome) -> None:
        reply = FlushReply(
            request_id=request.request_id, status=outcome.status, durable=outcome.durable, reason=outcome.reason
        )
        self._answer(request, reply)
