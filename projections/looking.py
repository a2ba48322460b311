"""Looks at Session logs, on threads of which any may hang: those are replaced, up to a bound."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from math import inf
from typing import TypeAlias

from msgspec import Struct

from barrier.threads import ReplaceableThreads
from feedback.errors import CommandFailed, FeedbackError
from feedback.failures import Failure, failure_of
from feedback.identities import SessionIdentities
from feedback.model import SessionIdentity

logger = logging.getLogger(__name__)

Found: TypeAlias = SessionIdentity | Failure | None
"""A Session's current identity; why it cannot be told; None when there is no such Session."""

PATIENCE_S = 5.0
"""How long a look may take before others go on without its thread."""


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
        self._threads = ReplaceableThreads(threads)
        self._clock = clock
        self._looks: dict[Future[Found], _Look] = {}
        self._replaced: dict[Future[Found], _Look] = {}
        """Those whose threads were replaced."""

    def begin(self, session_id: str) -> Future[Found] | None:
        """A look at this Session's log; None while too many hang."""
        look = _Look(session_id)
        found = self._threads.submit(partial(self._find, look))
        if found is not None:
            self._looks[found] = look
        return found

    def tend(self) -> None:
        """Where a look hangs, go on with other threads. Looks that no thread got to are cancelled: begin them anew."""
        self._looks, self._replaced = _under_way(self._looks), _under_way(self._replaced)
        if any(self._takes_long(look) for look in self._looks.values()):
            self._replace()

    def hangs(self, found: Future[Found]) -> bool:
        """Whether that look takes longer than there is patience for, as far as `tend` saw."""
        look = self._replaced.get(found)
        return look is not None and self._takes_long(look)

    def close(self) -> None:
        """End the threads. A look that hangs ends with the process at the latest; others are waited for."""
        self._replace()
        wait([found for found, look in self._replaced.items() if not self._takes_long(look)], PATIENCE_S)

    def _replace(self) -> None:
        self._threads.replace()
        self._replaced |= _under_way(self._looks)
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
