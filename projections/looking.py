"""Looks at Session logs, on threads of which any may hang: those are replaced, up to a bound."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from math import inf
from typing import TypeAlias

from msgspec import Struct

from barrier.threads import Threads
from feedback.errors import CommandFailed, FeedbackError
from feedback.failures import Failure, failure_of
from feedback.identities import SessionIdentities
from feedback.model import SessionIdentity

logger = logging.getLogger(__name__)

Found: TypeAlias = SessionIdentity | Failure | None
"""A Session's current identity; why it cannot be told; None when there is no such Session."""

PATIENCE_S = 5.0
"""How long a look may take before others go on without its thread."""
_MOST_HANGING = 8
"""Looks that hang may hold so many times the threads: a mount that hangs must not take memory without end."""


class _Look(Struct):
    """`began_s`: when a thread got to it."""

    session_id: str
    began_s: float = inf


class Looks:
    """Finds identities out, several at the same time. For one thread."""

    def __init__(
        self, identities: SessionIdentities, threads: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`threads` logs are looked at at the same time, not counting those that hang; `clock` gives seconds."""
        self._identities = identities
        self._threads = threads
        self._clock = clock
        self._pool: Threads | None = None
        """Threads of which none hangs; None until some are needed."""
        self._looks: dict[Future[Found], _Look] = {}
        """Those of the pool."""
        self._given_up: dict[Future[Found], _Look] = {}
        """Those that threads are at which are none of the pool any more."""

    def begin(self, session_id: str) -> Future[Found] | None:
        """A look at this Session's log; None while too many hang."""
        if self._pool is None:
            if len(self._given_up) + self._threads > _MOST_HANGING * self._threads:
                return None
            self._pool = Threads(self._threads)
        look = _Look(session_id)
        found = self._pool.submit(partial(self._find, look))
        self._looks[found] = look
        return found

    def tend(self) -> None:
        """Where a look hangs, go on with other threads. Looks that no thread got to are cancelled: begin them anew."""
        self._given_up, self._looks = _under_way(self._given_up), _under_way(self._looks)
        if any(self._takes_long(look) for look in self._looks.values()):
            self._end()

    def hangs(self, found: Future[Found]) -> bool:
        """Whether that look takes longer than there is patience for, as far as `tend` saw."""
        look = self._given_up.get(found)
        return look is not None and self._takes_long(look)

    def close(self) -> None:
        """End the threads. A look that hangs ends with the process at the latest; others are waited for."""
        self._end()
        wait([found for found, look in self._given_up.items() if not self._takes_long(look)], PATIENCE_S)

    def _end(self) -> None:
        """Leave the threads to what they are at."""
        if self._pool is not None:
            self._pool.end()
            self._pool = None
        self._given_up |= {found: look for found, look in self._looks.items() if not found.cancel()}
        self._looks = {}

    def _takes_long(self, look: _Look) -> bool:
        return look.began_s <= self._clock() - PATIENCE_S

    def _find(self, look: _Look) -> Found:
        look.began_s = self._clock()
        try:
            return self._identities.identity(look.session_id)
        except FeedbackError as error:
            return failure_of(error)
        except Exception as error:
            # Whoever asks asks again: one Session must not end the projector each time.
            logger.exception("a Session broke its reader session=%r", look.session_id)
            return failure_of(CommandFailed(f"the projector broke on it: {type(error).__name__}: {error}"))


def _under_way(looks: dict[Future[Found], _Look]) -> dict[Future[Found], _Look]:
    return {found: look for found, look in looks.items() if not found.done()}
