"""Finding out which life a Session is in, which may mean to read its log: a slow log holds up nobody else.

Mostly a stat tells, and then no other thread is asked: changing threads takes longer than answering. A log that this
projector does not see is looked at by the agent of its host.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from typing import Protocol, TypeAlias

from msgspec import Struct

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.errors import AgentUnanswered, FeedbackError, HostUnknown, LogUnreadable, QueueUnavailable
from feedback.failures import failure_of
from feedback.hosts import Sight, check_host
from feedback.identities import SessionIdentities
from feedback.queries import ListQuery
from projections.looking import Found, Looks

Place: TypeAlias = tuple[str | None, str]
"""The host whose agent knows, None for this projector's own log root; and a Session id."""

MOST_HELD = 10_000
"""Queries that may wait for logs to be read. A disk that hangs must not fill the memory."""
_SHARES = 10
"""One Session's queries may take a tenth of that room."""
PARTING_MS = 150
"""How long before its deadline a query is told that it waits in vain, so that the answer still finds its reader."""
LONGEST_WAIT_MS = 600_000
_SOON_S = 0.05


class Agents(Protocol):
    """Knows the Sessions of other hosts (`projections.agents.AgentIdentities`)."""

    def ask(self, sessions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Future[Found]]:
        """What is found of Sessions, given as host and id. Raises RedisError: asking again is harmless."""
        ...


class _Held(Struct, frozen=True):
    """A query, and when it is told that it waits in vain."""

    query: ListQuery
    until_s: float


class _Reading(Struct, frozen=True):
    """One look at a Session's log, and the queries (by id) that it answers: those asked before it began."""

    found: Future[Found]
    queries: dict[str, _Held]


class Resolver:
    """Resolves the Sessions of queries on other threads, each Session on one thread at a time. For one thread."""

    def __init__(
        self,
        identities: SessionIdentities | None,
        threads: int,
        *,
        agents: Agents | None = None,
        host: str = "",
        most_held: int = MOST_HELD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identities` are those of the logs that this projector sees, None when it sees none; `host` is whose they
        are. Without `agents` there are no others. `threads` logs are read at the same time, not counting those that
        hang; `clock` gives seconds."""
        self._identities = identities
        self._sight = Sight(identities is not None, host)
        self._agents = agents
        self._looks = None if identities is None else Looks(identities, threads, clock=clock)
        self._most_held = most_held
        self._most_of_one = max(1, most_held // _SHARES)
        self._clock = clock
        self._held = 0
        self._next_check_s = 0.0
        self._readings: dict[Place, _Reading] = {}
        self._later: dict[Place, dict[str, _Held]] = {}
        """Queries on Sessions that are being read: what is found may be older than the question, so they are next."""

    @property
    def is_busy(self) -> bool:
        """Whether there are queries that `resolved` has not given yet."""
        return self._held > 0

    def close(self) -> None:
        """End the threads; what is held is not answered."""
        if self._looks is not None:
            self._looks.close()

    def resolved(self, queries: Iterable[ListQuery]) -> list[tuple[ListQuery, Found]]:
        """Take these queries in, and give those that are resolved by now; the others come from a later call.

        Raises:
            RedisError: agents could not be asked; the queries stay.
        """
        self._tend()
        known = self._given_up()
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
        reading, waiting = self._readings.get(place), self._later.get(place, {})
        asked = {} if reading is None else reading.queries
        if query.query_id in asked or query.query_id in waiting:
            return True
        if self._held >= self._most_held or len(asked) + len(waiting) >= self._most_of_one:
            return False
        self._held += 1
        self._later.setdefault(place, {})[query.query_id] = _Held(query, self._until(query))
        return True

    def _until(self, query: ListQuery) -> float:
        left_ms = query.deadline - wall_clock_ms()
        # It was let in past its deadline: the clock of who asks is another.
        wait_ms = max(0, left_ms - PARTING_MS) if left_ms > 0 else 1000 * keys.REPLY_TTL_S
        return self._clock() + min(wait_ms, LONGEST_WAIT_MS) / 1000

    def _tend(self) -> None:
        """See to the threads. Queries of looks that were cancelled wait again, before those that were asked later."""
        if self._looks is None:
            return
        self._looks.tend()
        for (host, _), reading in self._readings.items():
            if host is None and not reading.queries:
                reading.found.cancel()
        for place in [place for place, reading in self._readings.items() if reading.found.cancelled()]:
            if queries := self._readings.pop(place).queries | self._later.pop(place, {}):
                self._later[place] = queries

    def _hangs(self, place: Place) -> bool:
        reading = self._readings.get(place)
        return self._looks is not None and reading is not None and self._looks.hangs(reading.found)

    def _given_up(self) -> list[tuple[ListQuery, Found]]:
        """Queries that wait in vain; when there is no room, also those behind logs that hang."""
        told: list[tuple[ListQuery, Found]] = []
        now_s = self._clock()
        if not self._held or now_s < self._next_check_s:
            return told
        self._next_check_s = now_s + _SOON_S
        is_full = self._held >= self._most_held
        reading = ((place, reading.queries) for place, reading in self._readings.items())
        for place, queries in chain(reading, self._later.items()):
            hangs = is_full and self._hangs(place)
            if late := [query_id for query_id, held in queries.items() if hangs or held.until_s <= now_s]:
                failure = failure_of(_unread(*place))
                told += [(queries.pop(query_id).query, failure) for query_id in late]
        self._later = {place: queries for place, queries in self._later.items() if queries}
        self._held -= len(told)
        return told

    def _read(self) -> list[tuple[ListQuery, Found]]:
        begun = self._begin([place for place in self._later if place not in self._readings])
        wait(begun, timeout=_SOON_S)
        done = [place for place, reading in self._readings.items() if reading.found.done()]
        finished = [self._readings.pop(place) for place in done]
        answered = [(held.query, reading.found.result()) for reading in finished for held in reading.queries.values()]
        self._held -= len(answered)
        return answered

    def _begin(self, places: Sequence[Place]) -> list[Future[Found]]:
        """Have logs looked at, here or by agents."""
        begun: dict[Place, Future[Found]] = {}
        if self._agents is not None:
            elsewhere = [(host, session_id) for host, session_id in places if host is not None]
            begun = {(host, session_id): found for (host, session_id), found in self._agents.ask(elsewhere).items()}
        for host, session_id in places:
            if host is None and self._looks is not None and (look := self._looks.begin(session_id)) is not None:
                begun[None, session_id] = look
        for place, found in begun.items():
            self._readings[place] = _Reading(found, self._later.pop(place))
        return list(begun.values())


def _unread(host: str | None, session_id: str) -> FeedbackError:
    if host is not None:
        return AgentUnanswered(host, "no answer in time")
    return LogUnreadable(session_id, "the projector's log root", "its log takes long to be read")
