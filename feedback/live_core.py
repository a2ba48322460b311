"""What the owner of live Sessions tells the server, and when: the core of `feedback.live` and `feedback.live_aio`.

No I/O: a keeper asks for the next call, makes it, and brings the reply or the error; a listener brings what came
on the owner's list. One call at a time, so the server hears everything in one order, and each may be repeated.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct
from redis.exceptions import NoScriptError, RedisError

from feedback import keys
from feedback.calls import Call, wall_clock_ms
from feedback.connection import is_passing
from feedback.errors import FeedbackError, QueueUnavailable, ShuttingDown
from feedback.flushing import FlushReply, FlushRequest, encode_reply
from feedback.live_requests import MOST_PENDING, Registration, Requests
from feedback.requests import check_timeout
from feedback.scripting import Script

logger = logging.getLogger(__name__)

F = TypeVar("F")

DEFAULT_TTL_S = 6.0
LEAST_TTL_S = 0.1
BATCH = 256
"""Bound on the Sessions or replies of one call."""
MOST_LEAVING = 100_000
"""Sessions that the server may still have to be told of. The registrations of more expire by themselves."""
CLOSE_S = 2.0
"""How long a server that does not answer is told that this owner goes away."""

_BEATS_PER_TTL = 3
_RENEW_S = keys.LIVE_TTL_S / 4
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_FAREWELL = b""

_hold = Script("feedback", "live_hold")
_leave = Script("feedback", "live_leave")
_reply = Script("feedback", "live_reply")


class _Step(Struct, frozen=True):
    """A call under way, and what its reply does."""

    script: Script
    keys: Sequence[str]
    args: Sequence[str | bytes | int]
    done: Callable[[Sequence[int]], None]


class _Reply(Struct, frozen=True):
    worker_id: str
    body: bytes
    deadline: int


class LiveCore(Generic[F]):
    """One owner's state, for one thread at a time. It schedules by `clock`, in seconds; deadlines are of `clock_ms`."""

    def __init__(
        self,
        owner_id: str,
        ttl_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = wall_clock_ms,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Raises InvalidRequest when `ttl_s` is not a number of seconds."""
        self.owner_id = owner_id
        self.requests = Requests[F](clock_ms, self._answer, self._leaving_now)
        self.closing = False
        self.finished = False
        """Closed, and the server told so as well as could be: keeper and listener end."""
        self._ttl_s = max(LEAST_TTL_S, check_timeout(ttl_s))
        self._clock = clock
        self._clock_ms = clock_ms
        self._jitter = jitter
        # Work for the server. Dicts keep order and hold each Session once.
        self._arriving: dict[str, Registration[F]] = {}
        self._renewing: dict[str, None] = {}
        self._leaving: dict[str, None] = {}
        self._replies: deque[_Reply] = deque()
        self._step: _Step | None = None
        self._known = False
        """Whether the server was told of this owner, as far as we know."""
        self._next_beat = self._next_renewal = 0.0
        self._failures = self._deafness = 0
        self._trouble: Exception | None = None
        self._retry_at = 0.0
        self._gone = self._drained = False
        self._close_by: float | None = None

    @property
    def listening(self) -> bool:
        """Whether requests may still come in."""
        return not (self._drained or self.finished)

    def register(self, registration: Registration[F]) -> bool:
        """Hold a Session and tell the server; whether its flush is due at once (for whom it replaces).

        Raises:
            ShuttingDown: this owner is closed.
        """
        if self.closing:
            raise ShuttingDown("these live Sessions are closed")
        if (former := self._arriving.get(registration.session_id)) is not None:
            former.settled.set()
        self._arriving[registration.session_id] = registration
        self._leaving.pop(registration.session_id, None)
        return self.requests.add(registration)

    def withdraw(self, registration: Registration[F], timeout: float) -> FeedbackError:
        """Give up a registration that the server did not take in time; the error that says so."""
        self.requests.close(registration)
        error = QueueUnavailable(
            f"Session {registration.session_id!r} was not registered within {timeout:g} s: {self._trouble}"
        )
        error.__cause__ = self._trouble
        return error

    def close(self) -> None:
        """Let go of all Sessions and take no more. Flushes that run are answered; then the server is told."""
        self.closing = True
        self._refuse(ShuttingDown, "these live Sessions were closed meanwhile")
        for registration in list(self.requests.held.values()):
            self.requests.close(registration)

    def receive(self, data: object) -> Registration[F] | None:
        """What came on the owner's list (None: nothing for a while); the registration whose flush is due by it."""
        self._deafness = 0
        if data == _FAREWELL and self.closing:
            self._drained = True
            return None
        return self.requests.receive(data) if isinstance(data, bytes) else None

    def deaf(self, error: Exception) -> float:
        """The listener could not hear: how long it should wait. The server may be another one, or have forgotten."""
        self._deafness += 1
        self._doubt()
        logger.log(
            logging.WARNING if self._deafness == 1 else logging.DEBUG, "no flush requests can be heard: %s", error
        )
        return self._pause(self._deafness)

    def next_call(self) -> Call | None:
        """What to send now; None when there is nothing to do before `idle_s` has passed or something changed."""
        now = self._clock()
        self._consider_the_end(now)
        if self.finished or now < self._retry_at:
            return None
        if self._step is not None:
            return Call(self._step.script.by_source(self._step.keys, self._step.args))
        if self._known and not self._gone and now >= self._next_renewal:
            self._doubt()
            self._next_renewal = now + _RENEW_S
        self._step = self._plan(now)
        return Call(self._step.script.by_digest(self._step.keys, self._step.args)) if self._step else None

    def answered(self, reply: Sequence[int]) -> None:
        """The call that was due got its reply."""
        assert self._step is not None
        step, self._step = self._step, None
        if self._failures:
            logger.info("the server answers again")
        self._failures, self._trouble = 0, None
        step.done(reply)

    def failed(self, error: Exception) -> None:
        """The call that was due failed."""
        assert self._step is not None
        if isinstance(error, NoScriptError):
            return  # the next call is the same one, and teaches the script
        registering = self._step.script is _hold
        self._step = None
        self._failures += 1
        self._trouble = error
        self._retry_at = self._clock() + self._pause(self._failures)
        logger.log(logging.WARNING if self._failures == 1 else logging.DEBUG, "the server does not answer: %s", error)
        self._doubt()
        if registering and isinstance(error, RedisError) and not is_passing(error):
            self._refuse(QueueUnavailable, f"Redis: {error}")

    def idle_s(self) -> float:
        """How long there is nothing to do unless something changes, in seconds."""
        now = self._clock()
        if now < self._retry_at:
            return self._retry_at - now
        due = [now + _RENEW_S]
        if self._known and not self._gone:
            due += (self._next_beat, self._next_renewal)
        if self._close_by is not None:
            due.append(self._close_by)
        return max(0.0, min(due) - now)

    def _plan(self, now: float) -> _Step | None:
        """The most urgent work: to stay alive, then what changed before the answers that say so, then the rest."""
        if self._known and not self._gone and now >= self._next_beat:
            return self._holding(now)
        last = self.closing and not self.requests.flushing and not self._gone
        if self._leaving or last:
            return self._letting_go(last=last and len(self._leaving) <= BATCH)
        if self._arriving:
            return self._holding(now)
        if (step := self._replying()) is not None:
            return step
        return self._holding(now) if self._renewing and not self._gone else None

    def _holding(self, now: float) -> _Step:
        """A heartbeat, with as many Sessions to register and to renew as go into one call."""
        arriving = list(islice(self._arriving.values(), BATCH))
        renewing = [self.requests.held[name] for name in islice(self._renewing, BATCH - len(arriving))]
        for registration in renewing:
            del self._renewing[registration.session_id]
        args: list[str | bytes | int] = [self.owner_id, int(self._ttl_s * 1000), keys.LIVE_TTL_S, keys.OWNER_PREFIX]
        for how, registrations in (("take", arriving), ("keep", renewing)):
            for one in registrations:
                cwd = one.identity.cwd
                args += (how, one.session_id, one.identity.created_at, "" if cwd is None else f"={cwd}")
        names = [keys.owner(self.owner_id), *(keys.live(one.session_id) for one in (*arriving, *renewing))]

        def done(reply: Sequence[int]) -> None:
            if self._known and not reply[0]:
                logger.warning("the server forgot this owner of live Sessions: registering all of them again")
                self._doubt()
            if not self._known:
                self._next_renewal = now + _RENEW_S
            self._known = True
            self._next_beat = now + self._ttl_s / _BEATS_PER_TTL
            for registration in arriving:
                if self._arriving.get(registration.session_id) is registration:
                    del self._arriving[registration.session_id]
                registration.settled.set()
            for registration, held in zip((*arriving, *renewing), reply[1:], strict=True):
                if not held:
                    logger.info("another live owner holds session=%r", registration.session_id)

        return _Step(_hold, names, args, done)

    def _letting_go(self, *, last: bool) -> _Step:
        leaving = list(islice(self._leaving, BATCH))
        names = [keys.owner(self.owner_id), keys.flushes(self.owner_id), *map(keys.live, leaving)]

        def done(_reply: Sequence[int]) -> None:
            for session_id in leaving:
                self._leaving.pop(session_id, None)
            self._gone = self._gone or last

        return _Step(_leave, names, (self.owner_id, int(last), keys.REPLY_TTL_S), done)

    def _replying(self) -> _Step | None:
        now_ms = self._clock_ms()
        while self._replies and self._replies[0].deadline <= now_ms:
            self._replies.popleft()  # nobody waits for it any more
        batch = list(islice(self._replies, BATCH))

        def done(_reply: Sequence[int]) -> None:
            for _ in batch:
                self._replies.popleft()

        names = [keys.wake(reply.worker_id) for reply in batch]
        return _Step(_reply, names, (keys.WAKE_TTL_S, *(reply.body for reply in batch)), done) if batch else None

    def _answer(self, request: FlushRequest, reply: FlushReply) -> None:
        if len(self._replies) >= MOST_PENDING:
            logger.warning("flush reply dropped, too many wait to be sent session=%r", request.session_id)
            return
        self._replies.append(_Reply(request.worker_id, encode_reply(reply), request.deadline))

    def _leaving_now(self, session_id: str) -> None:
        self._arriving.pop(session_id, None)
        self._renewing.pop(session_id, None)
        if not self._gone and (self.closing or len(self._leaving) < MOST_LEAVING):
            self._leaving[session_id] = None

    def _refuse(self, kind: type[FeedbackError], reason: str) -> None:
        for registration in self._arriving.values():
            registration.error = kind(reason)
            registration.settled.set()

    def _doubt(self) -> None:
        """Take nothing for granted that the server was told: register all Sessions again, or renew them."""
        self._renewing = dict.fromkeys(self.requests.held)

    def _pause(self, failures: int) -> float:
        longest = min(_LONGEST_PAUSE_S, self._ttl_s / _BEATS_PER_TTL)
        full = min(longest, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 32))
        return full / 2 + full / 2 * self._jitter()

    def _consider_the_end(self, now: float) -> None:
        if not self.closing or self.requests.flushing:
            return
        if self._close_by is None:
            self._close_by = now + CLOSE_S
        told = self._gone and self._drained and not self._replies
        in_vain = now >= self._close_by or (self._failures > 0 and not self._known)
        self.finished = told or in_vain
