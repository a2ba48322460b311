"""Faults of a PostgreSQL store: `python -m tests.chaos --store postgres`. A primary and its synchronous standby."""

import signal
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg

from tests.chaos.nemesis import Field, Kinds
from tests.harness import wait_until
from tests.postgres import Postgres

_DATABASE = "feedback"
_IN_STEP = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"


class PostgresPair:
    """Two servers, of which one takes writes and acknowledges none that the other does not have on its disk."""

    def __init__(self) -> None:
        """Start both. From the thread that uses them."""
        with ExitStack() as stack:
            self.primary = stack.enter_context(closing(Postgres()))
            self.primary.start()
            self.primary.create(_DATABASE)
            # The copy has it too, for the time when it is the primary; this one heeds it when there is a standby.
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.standby = stack.enter_context(closing(Postgres(copy_of=self.primary)))
            self.standby.start()
            self.primary.execute("SELECT pg_reload_conf()")
            hosts = quote(f"{self.primary.home},{self.standby.home}")
            # The third worker to be frozen inside its commit must not hold the campaign up for the usual ten seconds.
            limits = quote("-c transaction_timeout=3000 -c idle_in_transaction_session_timeout=1000")
            self.url = f"postgresql://postgres@/{_DATABASE}?host={hosts}&options={limits}"
            self.wait_until_in_step()
            self._stack = stack.pop_all()

    def wait_until_in_step(self) -> None:
        """Until the standby has all that was acknowledged, and whatever is acknowledged from now on."""
        wait_until(lambda: self.primary.execute(_IN_STEP), "the standby keeps up")

    def fail_over(self, how: signal.Signals) -> None:
        """The primary ends, the standby takes its place, and what was the primary begins anew as its standby."""
        self.primary.stop(how)
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)
        self.standby.start()

    def cut(self) -> None:
        """Throw every client out."""
        self.primary.cut_connections(_DATABASE)

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection without any limits."""
        return psycopg.connect(self.primary.url(_DATABASE), autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


class PostgresFaults:
    """The primary, the standby, the connections to them, and other programs in the database."""

    def __init__(self, field: Field, pair: PostgresPair) -> None:
        self._field = field
        self._pair = pair
        self._rng = field.rng

    def kinds(self) -> Kinds:
        return {name: (weight, partial(self._awake, fault)) for name, (weight, fault) in self._kinds().items()}

    def _awake(self, fault: Callable[[], str]) -> str:
        """Whatever is done to a server is done to one that runs."""
        for server in (self._pair.primary, self._pair.standby):
            server.freeze(signal.SIGCONT)
        return fault()

    def _kinds(self) -> Kinds:
        return {
            "the database server is killed": (3, self._kill),
            "the database server restarts": (1, self._restart),
            "the database fails over": (3, self._fail_over),
            "database connections are cut": (4, self._cut),
            "the database server is frozen": (2, lambda: self._freeze(self._pair.primary)),
            "the standby is frozen": (2, lambda: self._freeze(self._pair.standby)),
            "the standby restarts": (1, self._restart_standby),
            "a wait for the standby is broken off": (1, self._break_off),
            "a partition's row is locked": (2, self._lock),
            "the database takes no writes": (1, self._read_only),
        }

    def _seconds(self, most: float) -> float:
        return self._rng.uniform(0.0, most)

    def _settle(self) -> None:
        """End what is under way: a cluster's manager promotes a standby only if that keeps up."""
        self._field.end_all()
        self._pair.wait_until_in_step()

    def _kill(self) -> str:
        return self._down(self._pair.primary, signal.SIGQUIT)

    def _restart(self) -> str:
        return self._down(self._pair.primary, signal.SIGINT)

    def _restart_standby(self) -> str:
        return self._down(self._pair.standby, signal.SIGQUIT)

    def _down(self, server: Postgres, how: signal.Signals) -> str:
        self._field.end_all()
        seconds = self._seconds(1.5)
        server.stop(how)
        self._field.pass_time(seconds)
        server.start()
        return f"{how.name}, down for {seconds:.1f} s"

    def _fail_over(self) -> str:
        self._settle()
        self._pair.fail_over(self._rng.choice((signal.SIGQUIT, signal.SIGQUIT, signal.SIGINT)))
        return "the standby is the primary now"

    def _cut(self) -> str:
        self._pair.cut()
        return "all of them"

    def _freeze(self, server: Postgres) -> str:
        seconds = self._seconds(2)
        server.freeze()
        self._field.after(seconds, lambda: server.freeze(signal.SIGCONT))
        return f"for {seconds:.1f} s"

    def _break_off(self) -> str:
        """Commits that stand on the primary alone for a while, and that nobody may have been told of."""
        self._settle()
        standby = self._pair.standby
        standby.freeze()
        self._field.pass_time(0.3)
        self._pair.primary.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname IS NOT NULL"
        )
        standby.freeze(signal.SIGCONT)
        self._pair.wait_until_in_step()
        return "and goes on"

    def _lock(self) -> str:
        """Another program holds a partition's row, as a worker does that is frozen inside a commit."""
        other = self._pair.connect()
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM session_feedback.fence WHERE partition = %s FOR UPDATE", (self._rng.randrange(8),))
        seconds = self._seconds(4)

        def release() -> None:
            with suppress(psycopg.Error):
                other.execute("ROLLBACK")
            other.close()

        self._field.after(seconds, release)
        return f"for {seconds:.1f} s"

    def _read_only(self) -> str:
        """As a primary that was demoted: it is there, and of no use."""
        self._field.end_all()
        self._pair.primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        self._pair.primary.execute("SELECT pg_reload_conf()")
        self._pair.cut()
        seconds = self._seconds(2)
        self._field.pass_time(seconds)
        with self._pair.connect() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")
        return f"for {seconds:.1f} s"
