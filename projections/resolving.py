"""Finding out which life a Session is in, which may mean to read its log: a slow log holds up nobody else.

Mostly a stat tells, and then no other thread is asked: changing threads takes longer than answering.
"""

from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from typing import Protocol, TypeAlias

from msgspec import Struct

from feedback.errors import FeedbackError
from feedback.failures import Failure, failure_of
from feedback.model import SessionIdentity
from feedback.queries import ListQuery

Found: TypeAlias = SessionIdentity | Failure | None
"""A Session's current identity; why it cannot be told; None when there is no such Session."""

_SOON_S = 0.05


class IdentitySource(Protocol):
    """Tells which life a Session is in. Called from several threads."""

    def known(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, if that can be told at once; None says nothing. Raises nothing."""
        ...

    def identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, None when there is no such Session.

        Raises:
            LogFailure: the Session's log cannot be inspected.
        """
        ...


class _Reading(Struct, frozen=True):
    """One look at a Session's log, and the queries (by id) that it answers: those asked before it began."""

    found: Future[Found]
    queries: dict[str, ListQuery]


class Resolver:
    """Resolves the Sessions of queries on other threads, each Session on one thread at a time. For one thread."""

    def __init__(self, identities: IdentitySource, threads: Executor) -> None:
        self._identities = identities
        self._threads = threads
        self._readings: dict[str, _Reading] = {}
        self._later: dict[str, dict[str, ListQuery]] = {}
        """Queries on Sessions that are being read: what is found may be older than the question, so they are next."""

    @property
    def is_busy(self) -> bool:
        """Whether there are queries that `resolved` has not given yet."""
        return bool(self._readings)

    def resolved(self, queries: Iterable[ListQuery]) -> list[tuple[ListQuery, Found]]:
        """Take these queries in, and give those that are resolved by now; the others come from a later call."""
        known: list[tuple[ListQuery, Found]] = []
        for query in queries:
            if (identity := self._identities.known(query.session_id)) is not None:
                known.append((query, identity))
            else:
                self._later.setdefault(query.session_id, {})[query.query_id] = query
        return known + self._read() if self._later or self._readings else known

    def _read(self) -> list[tuple[ListQuery, Found]]:
        begun = [self._begin(session_id) for session_id in list(self._later) if session_id not in self._readings]
        wait(begun, timeout=_SOON_S)
        done = [session_id for session_id, reading in self._readings.items() if reading.found.done()]
        finished = [self._readings.pop(session_id) for session_id in done]
        return [(query, reading.found.result()) for reading in finished for query in reading.queries.values()]

    def _begin(self, session_id: str) -> Future[Found]:
        found = self._threads.submit(self._look, session_id)
        self._readings[session_id] = _Reading(found, self._later.pop(session_id))
        return found

    def _look(self, session_id: str) -> Found:
        try:
            return self._identities.identity(session_id)
        except FeedbackError as error:
            return failure_of(error)
