"""Finding out which life a Session is in, which may mean to read its log: a slow log holds up nobody else.

Mostly a stat tells, and then no other thread is asked: changing threads takes longer than answering. A log that this
projector does not see is looked at by the agent of its host.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Protocol, TypeAlias

from msgspec import Struct

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.errors import CommandFailed, FeedbackError, HostUnknown, QueueUnavailable
from feedback.failures import Failure, failure_of
from feedback.hosts import Sight, check_host
from feedback.identities import SessionIdentities
from feedback.model import SessionIdentity
from feedback.queries import ListQuery

logger = logging.getLogger(__name__)

Found: TypeAlias = SessionIdentity | Failure | None
"""A Session's current identity; why it cannot be told; None when there is no such Session."""
Place: TypeAlias = tuple[str | None, str]
"""The host whose agent knows, None for this projector's own log root; and a Session id."""

MOST_HELD = 10_000
"""Queries that may wait for logs to be read. A disk that hangs must not fill the memory."""
_SOON_S = 0.05


class Agents(Protocol):
    """Knows the Sessions of other hosts (`projections.agents.AgentIdentities`)."""

    def ask(self, sessions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Future[Found]]:
        """What is found of Sessions, given as host and id. Raises RedisError: asking again is harmless."""
        ...


class _Reading(Struct, frozen=True):
    """One look at a Session's log, and the queries (by id) that it answers: those asked before it began."""

    found: Future[Found]
    queries: dict[str, ListQuery]


class Resolver:
    """Resolves the Sessions of queries on other threads, each Session on one thread at a time. For one thread."""

    def __init__(
        self,
        identities: SessionIdentities | None,
        threads: Executor,
        *,
        agents: Agents | None = None,
        host: str = "",
        most_held: int = MOST_HELD,
    ) -> None:
        """`identities` are those of the logs that this projector sees, None when it sees none; `host` is whose they
        are. Without `agents` there are no others."""
        self._identities = identities
        self._sight = Sight(identities is not None, host)
        self._agents = agents
        self._threads = threads
        self._most_held = most_held
        self._held = 0
        self._readings: dict[Place, _Reading] = {}
        self._later: dict[Place, dict[str, ListQuery]] = {}
        """Queries on Sessions that are being read: what is found may be older than the question, so they are next."""

    @property
    def is_busy(self) -> bool:
        """Whether there are queries that `resolved` has not given yet."""
        return bool(self._readings or self._later)

    def resolved(self, queries: Iterable[ListQuery]) -> list[tuple[ListQuery, Found]]:
        """Take these queries in, and give those that are resolved by now; the others come from a later call.

        Raises:
            RedisError: agents could not be asked; the queries stay.
        """
        known: list[tuple[ListQuery, Found]] = []
        for query in queries:
            try:
                host = self._host_of(query)
            except FeedbackError as error:
                known.append((query, failure_of(error)))
                continue
            own = self._identities if host is None else None
            if own is not None and (identity := own.known_identity(query.session_id)) is not None:
                known.append((query, identity))
            elif not self._hold((host, query.session_id), query):
                busy = QueueUnavailable("too many questions wait for Session logs to be read; ask again")
                known.append((query, failure_of(busy)))
        return known + self._read() if self._later or self._readings else known

    def _host_of(self, query: ListQuery) -> str | None:
        """Whose agent must be asked, None for this projector's own logs. Raises HostUnknown, InvalidRequest."""
        if query.host is not None:
            check_host("$.host", query.host)
        host = self._sight.agent_for(query.host)
        if host is not None and self._agents is None:
            raise HostUnknown(f"the Session's log lies on {host}, and this projector asks no agents")
        return host

    def _hold(self, place: Place, query: ListQuery) -> bool:
        """Keep the query until its Session's log was read. Whoever asks again by the same id waits once."""
        waiting = self._later.setdefault(place, {})
        if query.query_id not in waiting:
            if self._held >= self._most_held:
                if not waiting:
                    del self._later[place]
                return False
            self._held += 1
        waiting[query.query_id] = query
        return True

    def _read(self) -> list[tuple[ListQuery, Found]]:
        places = [place for place in self._later if place not in self._readings]
        begun = self._begin(places)
        wait(begun, timeout=_SOON_S)
        done = [place for place, reading in self._readings.items() if reading.found.done()]
        finished = [self._readings.pop(place) for place in done]
        answered = [(query, reading.found.result()) for reading in finished for query in reading.queries.values()]
        self._held -= len(answered)
        # Behind a slow log, most of those who asked have gone; but their clocks may differ.
        now_ms = wall_clock_ms() - 1000 * keys.REPLY_TTL_S
        return [(query, found) for query, found in answered if query.deadline > now_ms]

    def _begin(self, places: Sequence[Place]) -> list[Future[Found]]:
        """Have logs looked at, here or by agents."""
        begun: dict[Place, Future[Found]] = {}
        if self._agents is not None:
            elsewhere = [(host, session_id) for host, session_id in places if host is not None]
            begun = {(host, session_id): found for (host, session_id), found in self._agents.ask(elsewhere).items()}
        here = (session_id for host, session_id in places if host is None)
        begun |= {(None, session_id): self._threads.submit(self._look, session_id) for session_id in here}
        for place, found in begun.items():
            self._readings[place] = _Reading(found, self._later.pop(place))
        return list(begun.values())

    def _look(self, session_id: str) -> Found:
        assert self._identities is not None, "it sees the log"
        try:
            return self._identities.identity(session_id)
        except FeedbackError as error:
            return failure_of(error)
        except Exception as error:
            # Whoever asks asks again: one Session must not end the projector each time.
            logger.exception("a Session broke its reader session=%r", session_id)
            return failure_of(CommandFailed(f"the projector broke on it: {type(error).__name__}: {error}"))
