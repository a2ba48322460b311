"""Connections to one PostgreSQL database: how they are opened, shared out to threads, and given up after errors.

A connection is *leased* for one operation and comes back when that ends; there are only as many as operations at one
time. Connecting happens in the thread that wants the connection, so a server that is out of reach is said at once,
with the reason, and found again at the first try after it came back. (`psycopg_pool` connects in the background: its
callers wait for their whole timeout to learn nothing, and its pauses between tries grow with the outage.)
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from feedback.errors import StoreUnavailable
from persistence.sidecar import postgres_schema as schema
from persistence.sidecar.postgres_errors import ServerSilent, is_collision, is_elsewhere, is_fatal, translate
from persistence.sidecar.postgres_session import ANSWER_S, Session
from persistence.sidecar.postgres_url import Parameters, location

T = TypeVar("T")

_OLDEST_SERVER = 170_000

_MOST = 16
_FOR_READS = 4
"""Connections of this process at one time, and how many of them transactions leave to reads. A read inside of an
open transaction needs a second one, and reads wait for nobody."""

_KEPT_IDLE_S = 60.0
_TRIES = 4


class Passing(StoreUnavailable):
    """What failed had no effect that counts, and may be done again at once, on another connection."""

    @property
    def code(self) -> str:
        """Nobody outside has to know."""
        return StoreUnavailable.__name__


class PostgresConnections:
    """A bounded pool for one database. May be used from any thread, but not in a child after a fork."""

    def __init__(self, parameters: Parameters, *, serving: bool = True) -> None:
        """Nothing is opened yet. Not `serving`, the store may be one that was or is being moved, and take its time."""
        self.location = location(parameters)
        self._serving = serving
        self._conninfo = make_conninfo(**parameters)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[Session] = []
        self._closed = False
        # Bumped when all connections made before are not to be used again.
        self._generation = 0
        self._room = threading.BoundedSemaphore(_MOST)
        self._room_to_write = threading.BoundedSemaphore(_MOST - _FOR_READS)

    def check_open(self) -> None:
        """Raise `StoreUnavailable` when the store was closed, or opened before this process was forked off."""
        if os.getpid() != self._process:
            # Two processes on one connection would read each other's answers.
            raise StoreUnavailable(f"sidecar store {self.location}: opened before a fork; open another one here")
        if self._closed:
            raise StoreUnavailable(f"sidecar store {self.location}: closed")

    @contextlib.contextmanager
    def connected(self, *, patient: bool = False) -> Iterator[Session]:
        """A session outside of the pool, whatever the database holds; a `patient` one takes as long as it takes.

        Raises:
            StoreUnavailable: the server cannot be reached, does not let us in, or is too old.
        """
        session = self._connect(patient=patient)
        with contextlib.closing(session), self.guard(session):
            yield session

    def stored_version(self) -> int:
        """The schema version that the database holds; 0 where there is nothing of ours. Raises as `connected`, and
        `StoreForeign`."""
        with self.connected() as session:
            return schema.stored_version(session, self.location)

    def migrate(self) -> None:
        """Make the tables, or bring them up to date, where that is needed. Raises as `stored_version`."""
        if self.stored_version() < schema.SCHEMA_VERSION:
            with self.connected(patient=True) as session:
                schema.migrate(session, self.location)

    def run(self, operation: Callable[[Session], T], *, repeatable: bool = True) -> T:
        """One operation on one connection, and again on another one when this one turned out to be dead.

        What ran into another transaction was rolled back, and is done again too. What is not `repeatable` gets a
        connection that has just answered, and is done once.

        Raises:
            StoreForeign, StoreUnavailable: the operation may have been done all the same.
            ValueError: it violated a constraint.
        """

        def attempt() -> T:
            with self.lease(proven=not repeatable) as session:
                return operation(session)

        return self.persistently(attempt) if repeatable else attempt()

    def persistently(self, attempt: Callable[[], T]) -> T:
        """Do it again while what fails is passing, a few times."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(Passing):
                return attempt()
        return attempt()

    @contextlib.contextmanager
    def lease(self, *, writing: bool = False, proven: bool = False) -> Iterator[Session]:
        """One connection for one operation; an open transaction is rolled back when the block ends.

        `writing` is for transactions in which reads may follow on other connections; `proven` for a connection
        that has just answered.

        Raises:
            StoreForeign, StoreUnavailable, ValueError: as `guard`.
        """
        with contextlib.ExitStack() as stack:
            if writing:
                stack.enter_context(self._taken(self._room_to_write))
            stack.enter_context(self._taken(self._room))
            session = self._take(proven=proven)
            stack.callback(self._give_back, session)
            with self.guard(session):
                yield session

    @contextlib.contextmanager
    def guard(self, session: Session) -> Iterator[None]:
        """Raise what the driver raises as a failure of ours, and give all connections up when it is theirs.

        Raises:
            Passing: the connection is dead, its server takes no writes any more, or another transaction was in the way.
            StoreUnavailable, ValueError: as `translate`.
        """
        try:
            yield
        except psycopg.Error as error:
            failure = translate(error, self.location, session.parting)
            is_dead = session.closed or is_fatal(error) or is_elsewhere(error)
            # Of what stood behind the error in its pipeline psycopg believes that it is prepared.
            session.close()
            if is_dead:
                self._retire_all()
            # Who is silent would be silent again.
            if (is_dead and not isinstance(error, ServerSilent)) or is_collision(error):
                failure = Passing(str(failure))
            raise failure from error

    def close(self) -> None:
        """Close what is idle now, and what is leased when it comes back."""
        with self._lock:
            self._closed = True
        self._retire_all()

    @contextlib.contextmanager
    def _taken(self, room: threading.BoundedSemaphore) -> Iterator[None]:
        if not room.acquire(timeout=ANSWER_S):
            raise StoreUnavailable(f"sidecar store {self.location}: all connections of this process are in use")
        try:
            yield
        finally:
            room.release()

    def _take(self, *, proven: bool) -> Session:
        self.check_open()
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is not None and proven:
            try:
                session.ask([("SELECT", ())])
            except psycopg.Error:
                session.close()
                self._retire_all()
                session = None
        return self._open() if session is None else session

    def _give_back(self, session: Session) -> None:
        is_usable = session.rest()
        session.idle_since = time.monotonic()
        given_up = [session]
        with self._lock:
            if is_usable and not self._closed and session.generation == self._generation:
                self._idle.append(session)
                given_up = [idle for idle in self._idle if idle.idle_since < session.idle_since - _KEPT_IDLE_S]
                self._idle = self._idle[len(given_up) :]
        for old in given_up:
            old.close()

    def _retire_all(self) -> None:
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _open(self) -> Session:
        generation = self._generation
        session = self._connect(patient=not self._serving)
        try:
            with self.guard(session):
                schema.require(session, self.location)
                if self._serving:
                    schema.refuse_moved_away(session, self.location)
        except BaseException:
            session.close()
            raise
        session.generation = generation
        return session

    def _connect(self, *, patient: bool) -> Session:
        try:
            session = Session.begin(self._conninfo, patient=patient)
        except psycopg.Error as error:
            raise translate(error, self.location) from error
        if session.info.server_version < _OLDEST_SERVER:
            version = session.info.parameter_status("server_version")
            session.close()
            raise StoreUnavailable(f"sidecar store {self.location}: needs PostgreSQL 17, this one is {version}")
        return session
