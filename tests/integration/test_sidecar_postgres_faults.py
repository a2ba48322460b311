"""The PostgreSQL engine when servers crash and fail over, connections are cut, and processes stand still."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
from psycopg import errors

from feedback.errors import StoreUnavailable
from persistence.sidecar import postgres_session
from persistence.sidecar.postgres import PostgresStore
from persistence.sidecar.postgres_errors import translate
from persistence.sidecar.store import PutItem, StartSession, StoredTopology
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, P1, PostgresEngine, commit, item, message_ids, record
from tests.harness import wait_until
from tests.integration.sidecar_children import child, line_of
from tests.postgres import Postgres
from tests.postgres_proxy import PostgresProxy

DATABASE = "feedback"
NOT_IDLE = {"options": "-c idle_in_transaction_session_timeout=300"}
NOT_LONG = {"options": "-c transaction_timeout=600"}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server to be killed and started again."""
    server = Postgres()
    with closing(server):
        server.start()
        yield server


@pytest.fixture
def store(server: Postgres) -> Iterator[PostgresStore]:
    """A store in a database of its own, one Session rated."""
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    server.create(DATABASE)
    with closing(PostgresStore(server.url(DATABASE))) as opened:
        commit(opened, [StartSession("s", FIRST_LIFE), PutItem("s", item("m1"), 1)])
        yield opened


def rate(store: PostgresStore, message: str, revision: int) -> None:
    commit(store, [PutItem("s", item(message), revision)])


class TestServerCrash:
    def test_between_operations_is_not_noticed(self, server: Postgres, store: PostgresStore) -> None:
        """All pooled connections are dead: each kind of operation goes on with a new one."""
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        operations: list[Callable[[], object]] = [
            lambda: message_ids(store, "s"),
            lambda: rate(store, "m2", 2),
            lambda: commit(store, records=[record(1)], epochs={P0: epoch}),
            lambda: store.acquire_fences([P0], "b"),
            lambda: store.prune(expired_before=2**60, limit=1),
            lambda: store.set_topology(_topology(), replacing=None),
            store.health,
        ]
        for operation in operations:
            with store._connections.lease(), store._connections.lease():
                pass
            server.crash()
            server.start()
            operation()
        assert message_ids(store, "s") == ["m1", "m2"]
        assert (store.heads([P0]), store.topology()) == ({P0: 1}, _topology())

    def test_inside_a_batch_loses_the_batch_and_nothing_else(self, server: Postgres, store: PostgresStore) -> None:
        with pytest.raises(StoreUnavailable) as lost, store.transaction({}) as transaction:
            transaction.load([], [("s", "m1")])
            server.crash()
            server.start()
            transaction.apply([PutItem("s", item("m2"), 2)], [], {})
        assert lost.value.code == "StoreUnavailable"
        with pytest.raises(StoreUnavailable), store.transaction({}) as transaction:
            transaction.apply([PutItem("s", item("m2"), 2)], [], {})
            server.crash()
            server.start()
        rate(store, "m3", 2)
        assert message_ids(store, "s") == ["m1", "m3"]

    def test_is_said_at_once_while_it_lasts_and_over_when_it_is(self, server: Postgres, store: PostgresStore) -> None:
        server.crash()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="out of reach"):
                store.feedback("s")
            with pytest.raises(StoreUnavailable, match="out of reach"):
                rate(store, "m2", 2)
        server.start()
        rate(store, "m2", 2)
        assert message_ids(store, "s") == ["m1", "m2"]


def _topology() -> StoredTopology:
    return StoredTopology(1, 4, deployment=7)


class TestNetwork:
    def test_a_commit_whose_answer_is_lost_counts_and_its_records_tell(
        self, server: Postgres, store: PostgresStore
    ) -> None:
        with PostgresProxy(server) as proxy, closing(PostgresStore(proxy.url(DATABASE))) as remote:
            epoch = remote.acquire_fences([P0], "a")[P0].epoch
            known = record(1)
            proxy.lose_commit()
            with pytest.raises(StoreUnavailable):
                commit(remote, [PutItem("s", item("m2"), 2)], [known], epochs={P0: epoch})
            assert proxy.lost.is_set()
            with remote.transaction({P0: epoch}) as transaction:
                assert transaction.load([known.command_id], []).records == {known.command_id: known}
            assert message_ids(remote, "s") == ["m1", "m2"]

    def test_a_takeover_whose_answer_is_lost_is_done_again(self, server: Postgres, store: PostgresStore) -> None:
        with PostgresProxy(server) as proxy, closing(PostgresStore(proxy.url(DATABASE))) as remote:
            proxy.lose_commit()
            assert remote.acquire_fences([P0], "a")[P0].epoch == 2

    def test_connections_cut_at_any_time_break_at_most_what_is_open(
        self, server: Postgres, store: PostgresStore
    ) -> None:
        with PostgresProxy(server) as proxy, closing(PostgresStore(proxy.url(DATABASE))) as remote:
            for revision in (2, 3):
                proxy.cut_all()
                rate(remote, f"m{revision}", revision)
            with pytest.raises(StoreUnavailable), remote.transaction({}) as transaction:
                transaction.apply([PutItem("s", item("never"), 4)], [], {})
                proxy.cut_all()
            assert message_ids(remote, "s") == ["m1", "m2", "m3"]

    def test_a_server_that_falls_silent_is_given_up(
        self, server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_session, "ANSWER_S", 0.3)
        with PostgresProxy(server) as proxy, closing(PostgresStore(proxy.url(DATABASE))) as remote:
            assert message_ids(remote, "s") == ["m1"]
            proxy.flowing.clear()
            with pytest.raises(StoreUnavailable, match="no answer for"):
                remote.feedback("s")
            proxy.flowing.set()
            assert message_ids(remote, "s") == ["m1"]


class TestStandingStill:
    def test_a_batch_that_stands_still_is_thrown_out_and_its_partition_free(
        self, server: Postgres, store: PostgresStore
    ) -> None:
        with closing(PostgresStore(server.url(DATABASE, **NOT_IDLE))) as slow:
            epoch = slow.acquire_fences([P0], "slow")[P0].epoch
            with (
                pytest.raises(StoreUnavailable, match="stood still"),
                slow.transaction({P0: epoch}) as transaction,
            ):
                transaction.load([], [])
                # Waits for the row, until the server ends the other's transaction.
                assert store.acquire_fences([P0], "next")[P0].epoch == epoch + 1
                transaction.apply([PutItem("s", item("never"), 2)], [record(1)], {})
            assert message_ids(store, "s") == ["m1"]

    @pytest.mark.process
    def test_a_process_frozen_in_the_midst_of_sending_its_commit_holds_nobody_up(
        self, server: Postgres, store: PostgresStore
    ) -> None:
        """The server does not count this as standing still: only the limit on the whole transaction ends it."""
        script = """
import sys
from feedback.crashpoints import arm
from feedback.errors import StoreUnavailable
from persistence.sidecar import open_store
from persistence.sidecar.store import PutItem
from tests.conformance.sidecar_engines import P0, item, record
store = open_store(sys.argv[1])
epoch = store.acquire_fences([P0], "frozen")[P0].epoch
arm({"FEEDBACK_CRASHPOINT": "inside-commit:stop"})
print("here", flush=True)
try:
    with store.transaction({P0: epoch}) as transaction:
        transaction.load([], [("s", "m1")])
        transaction.apply([PutItem("s", item("never"), 2)], [record(1)], {})
except StoreUnavailable as error:
    print(error, flush=True)
"""
        with child(script, server.url(DATABASE, **NOT_LONG)) as process:
            assert line_of(process) == "here"
            wait_until(
                lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), "it stands still"
            )
            fence = store.acquire_fences([P0], "next")[P0]
            assert (fence.epoch, fence.sequence) == (2, 0)
            commit(store, [PutItem("s", item("m2"), 2)], [record(1)], epochs={P0: 2})
            os.kill(process.pid, signal.SIGCONT)
            assert "the server ended a transaction that took too long" in line_of(process)
        assert message_ids(store, "s") == ["m1", "m2"]

    def test_what_another_program_locks_is_waited_for_and_then_said(
        self, server: Postgres, store: PostgresStore
    ) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        with server.connect(DATABASE) as other, closing(PostgresStore(_in_a_hurry(server))) as hurried:
            other.execute("BEGIN")
            other.execute("SELECT 1 FROM session_feedback.fence FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="locked by another transaction for too long"):
                commit(hurried, records=[record(1)], epochs={P0: epoch})
            other.execute("ROLLBACK")
            commit(hurried, records=[record(1)], epochs={P0: epoch})

    def test_a_deadlock_with_another_program_is_done_again(self, server: Postgres, store: PostgresStore) -> None:
        store.acquire_fences([P0, P1], "a")
        lock = "SELECT 1 FROM session_feedback.fence WHERE partition = %s FOR UPDATE"
        with server.connect(DATABASE) as other, ThreadPoolExecutor(1) as pool:
            other.execute("SET deadlock_timeout = '60s'")  # so that it is never this one that gives way
            other.execute("BEGIN")
            other.execute(lock, (1,))
            takeover = pool.submit(store.acquire_fences, [P0, P1], "b")
            wait_until(lambda: _waiting(server), "the takeover waits for the second row")
            other.execute(lock, (0,))
            other.execute("COMMIT")
            assert {fence.epoch for fence in takeover.result(30).values()} == {2}


def _in_a_hurry(server: Postgres) -> str:
    return server.url(DATABASE, options="-c lock_timeout=100")


def _waiting(server: Postgres) -> bool:
    return bool(server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


class TestStandby:
    @pytest.fixture
    def pair(self) -> Iterator[tuple[Postgres, Postgres]]:
        """A primary and its synchronous standby."""
        with ExitStack() as stack:
            primary = stack.enter_context(closing(Postgres()))
            primary.start()
            primary.create(DATABASE)
            standby = stack.enter_context(closing(Postgres(copy_of=primary)))
            standby.start()
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: primary.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"), "it follows"
            )
            yield primary, standby

    def test_after_a_failover_the_same_store_goes_on_with_all_that_was_acknowledged(
        self, pair: tuple[Postgres, Postgres]
    ) -> None:
        primary, standby = pair
        hosts = f"postgresql://postgres@/{DATABASE}?host={primary.home},{standby.home}"
        with pytest.raises(StoreUnavailable, match="read-only"):
            PostgresStore(standby.url(DATABASE))
        with closing(PostgresStore(hosts)) as store:
            epoch = store.acquire_fences([P0], "a")[P0].epoch
            commit(store, [StartSession("s", FIRST_LIFE), PutItem("s", item("m1"), 1)], [record(1)], epochs={P0: epoch})
            assert store.health().findings == PostgresEngine.flaws
            self._broken_off(primary, standby, store)
            primary.crash()
            with pytest.raises(StoreUnavailable):
                rate(store, "m3", 3)
            with closing(PostgresStore(standby.url(DATABASE, target_session_attrs="any"))) as lookout:
                assert message_ids(lookout, "s") == ["m1", "m2"]
                finding = lookout.health().findings[0]
                assert "the server is a standby" in finding
                standby.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
                standby.promote()
            rate(store, "m3", 3)
            assert message_ids(store, "s") == ["m1", "m2", "m3"]
            assert store.acquire_fences([P0], "b")[P0].sequence == 1

    def _broken_off(self, primary: Postgres, standby: Postgres, store: PostgresStore) -> None:
        """A wait for the standby that somebody broke off is no acknowledgement, although the primary has committed:
        of a batch, of a claim, or of what the deployment agrees on."""
        topology = StoredTopology(1, 4, former=2, retired=False)
        promises: list[Callable[[], object]] = [
            lambda: rate(store, "m2", 2),
            lambda: store.acquire_fences([P1], "a"),
            lambda: store.set_topology(topology, replacing=None),
            lambda: store.retire(topology),
        ]
        waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname IS NOT NULL"
        standby.freeze()
        with ThreadPoolExecutor(1) as pool:
            for promise in promises:
                waiting = pool.submit(promise)
                wait_until(lambda: primary.execute("SELECT 1 " + waits), "the commit waits for the standby")
                primary.execute("SELECT pg_cancel_backend(pid) " + waits)
                with pytest.raises(StoreUnavailable, match=r"no standby has confirmed the commit \(canceling wait"):
                    waiting.result(30)
        standby.freeze(signal.SIGCONT)
        # What answers from it waits for the standby itself.
        with store.transaction({P0: 1}) as transaction:
            assert transaction.load([], [("s", "m2")]).items

    def test_a_server_that_takes_no_writes_any_more_is_left(self, store: PostgresStore) -> None:
        """As a primary that was demoted, while the name leads to the new one."""
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        with store._connections.lease() as session:
            session.execute("SET default_transaction_read_only = on")
        commit(store, [PutItem("s", item("m2"), 2)], [record(1)], epochs={P0: epoch})
        assert message_ids(store, "s") == ["m1", "m2"]


class TestHealth:
    def test_what_endangers_ratings_is_found(self, server: Postgres, store: PostgresStore) -> None:
        @contextmanager
        def set_to(name: str, value: str) -> Iterator[None]:
            server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            server.execute("SELECT pg_reload_conf()")
            try:
                wait_until(lambda: server.execute(f"SHOW {name}") == [(value,)], "the server is set")
                yield
            finally:
                server.execute(f"ALTER SYSTEM RESET {name}")
                server.execute("SELECT pg_reload_conf()")

        def is_found(words: str) -> bool:
            return any(words in finding for finding in store.health().findings)

        with set_to("fsync", "on"), set_to("full_page_writes", "on"):
            wait_until(lambda: store.health().findings == (), "nothing is wrong")
        for name, value, words in (
            ("autovacuum", "off", "autovacuum is off"),
            ("synchronous_standby_names", "nobody", "no synchronous standby is connected"),
        ):
            with set_to(name, value):
                wait_until(lambda words=words: is_found(words), words)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        wait_until(lambda: store.health().findings == PostgresEngine.flaws, "nothing but what the tests do without")
        server.execute("INSERT INTO session_feedback.fence VALUES (1, 3, 1, '', 0)", DATABASE)
        row = "(1, 3, 9, decode(md5(''), 'hex'), '', NULL, '', '', 0, 0)"
        server.execute(f"INSERT INTO session_feedback.command VALUES {row}", DATABASE)
        assert "partition 1-3: record 9 lies past the last sequence 0" in store.health().findings


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.DiskFull, "no space left on the server's disk"),
        (errors.TooManyConnections, "no connection left"),
        (errors.DataCorrupted, "corrupt"),
        (errors.InsufficientPrivilege, "permission denied"),
        (errors.InvalidCatalogName, "no such database"),
        (errors.QueryCanceled, "took too long"),
    ],
)
def test_what_the_server_says_is_said_in_our_words(error: type[psycopg.Error], words: str) -> None:
    failure = translate(error("in theirs"), "postgresql://h/d")
    assert isinstance(failure, StoreUnavailable)
    assert words in str(failure)
    assert "postgresql://h/d" in str(failure)
    assert "in theirs" in str(failure)
