"""One session with a PostgreSQL server: its settings, what it asks in one round trip, and how it ends.

**What a stuck process cannot do.** The session's own limits make the server end, by itself, a transaction that stands
still or takes too long, so nobody holds a partition's row for longer than `_LIMITS` says, however it is frozen.
They need PostgreSQL 17: without its `transaction_timeout`, a client that freezes in the midst of sending would
hold its locks for ever, since the server does not count that as standing still.
"""

import contextlib
from collections.abc import Sequence
from typing import LiteralString, Self, TypeAlias, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.generators import send
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.sql import Composed
from psycopg.types.numeric import Int8BinaryDumper

from persistence.sidecar.postgres_errors import Said, ServerSilent, Unconfirmed

RV = TypeVar("RV")

Query: TypeAlias = tuple[LiteralString | Composed, Sequence[object]]
"""A statement and its parameters."""

ANSWER_S = 15.0
"""Longer than any statement may take. A server that is silent for so long is as good as gone."""

_LIMITS: LiteralString = """
    SELECT set_config(name, CASE WHEN setting::bigint BETWEEN 1 AND most THEN setting ELSE most::text END, false)
    FROM pg_settings JOIN (VALUES
        ('lock_timeout', 5000),
        ('idle_in_transaction_session_timeout', 3000),
        ('statement_timeout', 10000),
        ('transaction_timeout', 10000)
    ) AS bound (name, most) USING (name)"""
"""In milliseconds. Stricter ones of the URL, role or database stay. Between reading and writing a batch lie a few
milliseconds of computing; 3 s are less than the default lease, so whoever takes a frozen worker's partition over finds
its row free."""
_PATIENCE: LiteralString = """
    SET lock_timeout = 5000;
    SET idle_in_transaction_session_timeout = 0;
    SET statement_timeout = 0;
    SET transaction_timeout = 0"""

_SETTINGS: LiteralString = """;
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false);
    SET default_transaction_isolation = 'read committed';
    SET search_path = session_feedback;
    SET jit = off;
    SET enable_seqscan = off;
    SET tcp_keepalives_idle = 5;
    SET tcp_keepalives_interval = 2;
    SET tcp_keepalives_count = 3"""
"""Durability is the session's, whatever the server's default. Plans must not be those of tables that were small when
they were made, hence no sequential scans. The keepalives are the server's side: it, too, has to notice that a client's
machine is gone."""


class Session(psycopg.Connection[TupleRow]):
    """A connection in pipeline mode from `begin` to its end: statements are sent as they come, `sync` hears of them.

    It stays in that mode because psycopg ends it with one more message, behind the one that ends the round trip; to
    the server that is a sign of life, and it would never take the session for one that stands still.
    """

    generation = 0
    idle_since = 0.0
    warnings: list[str]
    """What the server warned of, since it was cleared last."""
    parting: Said | None = None
    """Why the server has ended this connection, when it did so unasked."""
    _answer_s: float | None = ANSWER_S
    _open: contextlib.ExitStack | None = None
    _pipeline_mode: psycopg.Pipeline

    @classmethod
    def begin(cls, conninfo: str, *, patient: bool) -> Self:
        """Connect. A `patient` session, which may also change tables, takes as long as it takes.

        Raises:
            psycopg.Error: the server is out of reach, or does not let us in.
        """
        session = cls.connect(conninfo, autocommit=True, prepare_threshold=None if patient else 0)
        try:
            session._set_up(patient=patient)  # noqa: SLF001  its own
        except BaseException:
            session.close()
            raise
        return session

    def ask(self, queries: Sequence[Query]) -> list[list[TupleRow]]:
        """Each statement's rows; all of them in one round trip."""
        cursors = [self.execute(statement, parameters, binary=True) for statement, parameters in queries]
        self.sync()
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def ask_and_commit(self, queries: Sequence[Query] = ()) -> list[list[TupleRow]]:
        """As `ask`, and the end of the open transaction: it is on stable storage wherever the server promises that.

        Raises:
            Unconfirmed: not on the synchronous standby, though there is to be one.
        """
        self.warnings.clear()
        *answers, _ = self.ask([*queries, ("COMMIT", ())])
        if self.warnings:
            raise Unconfirmed(self.warnings[0])
        return answers

    def flush(self) -> None:
        """Send what is still here: psycopg leaves what a socket does not take at once until the next statement."""
        self.wait(send(self.pgconn))

    def sync(self) -> None:
        """Hear of all that was sent. Raises the first error; what was sent behind it was not done."""
        # Whoever waits for answers has no hand free to send.
        self.flush()
        self._pipeline_mode.sync()

    def rest(self) -> bool:
        """End whatever is open; whether the session can be used again.

        Not after a rollback: psycopg then drops its prepared statements, behind the first that it has made anew.
        """
        if self._is_idle():
            return True
        with contextlib.suppress(psycopg.Error):
            self.sync()
            self.ask([("ROLLBACK", ())])
        return False

    def close(self) -> None:
        """End it, whatever is open. Repeatable."""
        super().close()
        if self._open is not None:
            with contextlib.suppress(psycopg.Error):
                self._open.close()

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """As the base class, but not for ever."""
        try:
            return super().wait(gen, interval, self._answer_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001  it has no public name
            self.pgconn.finish()
            raise ServerSilent(f"no answer for {self._answer_s} s") from error

    def _set_up(self, *, patient: bool) -> None:
        self.warnings = []
        self._answer_s = None if patient else ANSWER_S
        self.add_notice_handler(self._note)
        self.adapters.register_dumper(int, Int8BinaryDumper)
        self.execute((_PATIENCE if patient else _LIMITS) + _SETTINGS, prepare=False)
        self._open = contextlib.ExitStack()
        self._pipeline_mode = self._open.enter_context(self.pipeline())

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        """Keep a warning, or the last words."""
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary or "")
        elif notice.severity_nonlocalized in {"FATAL", "PANIC"}:
            self.parting = Said(notice.sqlstate, notice.message_primary or "")

    def _is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE
