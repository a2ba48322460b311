"""Finding out which life a Session is in, which may mean to read its log: a slow log holds up nobody else.

Mostly a stat tells, and then no other thread is asked: changing threads takes longer than answering.
"""

from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from typing import TypeAlias

from msgspec import Struct

from feedback.calls import wall_clock_ms
from feedback.errors import FeedbackError, QueueUnavailable
from feedback.failures import Failure, failure_of
from feedback.identities import SessionIdentities
from feedback.model import SessionIdentity
from feedback.queries import ListQuery

Found: TypeAlias = SessionIdentity | Failure | None
"""A Session's current identity; why it cannot be told; None when there is no such Session."""

MOST_HELD = 10_000
"""Queries that may wait for logs to be read. A disk that hangs must not fill the memory."""
_SOON_S = 0.05


class _Reading(Struct, frozen=True):
    """One look at a Session's log, and the queries (by id) that it answers: those asked before it began."""

    found: Future[Found]
    queries: dict[str, ListQuery]


class Resolver:
    """Resolves the Sessions of queries on other threads, each Session on one thread at a time. For one thread."""

    def __init__(self, identities: SessionIdentities, threads: Executor, *, most_held: int = MOST_HELD) -> None:
        self._identities = identities
        self._threads = threads
        self._most_held = most_held
        self._held = 0
        self._readings: dict[str, _Reading] = {}
        self._later: dict[str, dict[str, ListQuery]] = {}
        """Queries on Sessions that are being read: what is found may be older than the question, so they are next."""

    @property
    def is_busy(self) -> bool:
        """Whether there are queries that `resolved` has not given yet."""
        return bool(self._readings or self._later)

    def resolved(self, queries: Iterable[ListQuery]) -> list[tuple[ListQuery, Found]]:
        """Take these queries in, and give those that are resolved by now; the others come from a later call."""
        known: list[tuple[ListQuery, Found]] = []
        for query in queries:
            if (identity := self._identities.known_identity(query.session_id)) is not None:
                known.append((query, identity))
            elif not self._hold(query):
                busy = QueueUnavailable("too many questions wait for Session logs to be read; ask again")
                known.append((query, failure_of(busy)))
        return known + self._read() if self._later or self._readings else known

    def _hold(self, query: ListQuery) -> bool:
        """Keep the query until its Session's log was read. Whoever asks again by the same id waits once."""
        waiting = self._later.setdefault(query.session_id, {})
        if query.query_id not in waiting:
            if self._held >= self._most_held:
                if not waiting:
                    del self._later[query.session_id]
                return False
            self._held += 1
        waiting[query.query_id] = query
        return True

    def _read(self) -> list[tuple[ListQuery, Found]]:
        begun = [self._begin(session_id) for session_id in list(self._later) if session_id not in self._readings]
        wait(begun, timeout=_SOON_S)
        done = [session_id for session_id, reading in self._readings.items() if reading.found.done()]
        finished = [self._readings.pop(session_id) for session_id in done]
        answered = [(query, reading.found.result()) for reading in finished for query in reading.queries.values()]
        self._held -= len(answered)
        # Behind a slow log, most of those who asked have gone.
        now_ms = wall_clock_ms()
        return [(query, found) for query, found in answered if query.deadline > now_ms]

    def _begin(self, session_id: str) -> Future[Found]:
        found = self._threads.submit(self._look, session_id)
        self._readings[session_id] = _Reading(found, self._later.pop(session_id))
        return found

    def _look(self, session_id: str) -> Found:
        try:
            return self._identities.identity(session_id)
        except FeedbackError as error:
            return failure_of(error)
