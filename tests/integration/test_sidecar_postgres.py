"""The PostgreSQL engine on a real server: what it is made of, what it refuses, what it costs."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from feedback.errors import SettingsInvalid, StoreForeign, StoreUnavailable
from persistence.sidecar import find_store, open_store, postgres_schema, public_url
from persistence.sidecar.postgres import PostgresStore
from persistence.sidecar.postgres_text import LONGEST_KEY, key_of
from persistence.sidecar.store import HISTORY_START, Change, DeleteItem, PutItem, StartSession, StoredTopology
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, P1, SECOND_LIFE, commit, item, message_ids, record
from tests.postgres import GUARDED, PASSWORD, Databases
from tests.postgres_proxy import PostgresProxy

TOPOLOGY = StoredTopology(1, 4, deployment=7)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """An empty database."""
    with databases.one() as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as opened:
        yield opened


@pytest.fixture
def bare(databases: Databases, request: pytest.FixtureRequest) -> str:
    """The name of a database in which nothing of ours was ever made."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    databases.server.create(name)
    return name


def setting(store: PostgresStore, name: str) -> str:
    with store._connections.lease() as session:
        (((value,),),) = session.ask([("SELECT current_setting(%s)", (name,))])
    return str(value)


class TestSession:
    LIMITS: ClassVar = {
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "lock_timeout": "5s",
        "idle_in_transaction_session_timeout": "3s",
        "statement_timeout": "10s",
        "transaction_timeout": "10s",
        "search_path": "session_feedback",
    }

    def test_each_connection_is_durable_and_limits_itself_whatever_the_server_is_set_to(
        self, databases: Databases, url: str
    ) -> None:
        database = url.partition("?")[0].rpartition("/")[2]
        for wrong in ("synchronous_commit = off", "default_transaction_isolation = 'serializable'", "lock_timeout = 0"):
            databases.server.execute(f"ALTER DATABASE {database} SET {wrong}")
        try:
            with closing(PostgresStore(url)) as opened:
                assert {name: setting(opened, name) for name in self.LIMITS} == self.LIMITS
        finally:
            databases.server.execute(f"ALTER DATABASE {database} RESET ALL")

    def test_what_is_stricter_already_stays(self, url: str) -> None:
        asked = "&options=-c%20lock_timeout%3D70%20-c%20synchronous_commit%3Dremote_apply"
        with closing(PostgresStore(url + asked)) as opened:
            assert (setting(opened, "lock_timeout"), setting(opened, "synchronous_commit")) == ("70ms", "remote_apply")

    def test_connections_are_as_many_as_operations_at_one_time_and_gone_with_the_store(
        self, databases: Databases, url: str
    ) -> None:
        opened = PostgresStore(url)
        for _ in range(10):
            thread = threading.Thread(target=opened.feedback, args=("s",))
            thread.start()
            thread.join()
        assert len(opened._connections._idle) == 1
        with opened._connections.lease(), opened._connections.lease():
            assert opened._connections._idle == []
        opened.close()
        assert opened._connections._idle == []

    @pytest.mark.process
    def test_a_forked_child_may_not_use_its_parents_connections(self, url: str) -> None:
        script = """
import os, sys
from feedback.errors import StoreUnavailable
from persistence.sidecar import open_store
store = open_store(sys.argv[1])
store.topology()
if os.fork() == 0:
    try:
        store.topology()
    except StoreUnavailable as error:
        print(str(error).rpartition(": ")[2], flush=True)
    os._exit(0)
os.wait()
store.topology()
store.close()
"""
        done = subprocess.run([sys.executable, "-c", script, url], check=True, capture_output=True, text=True)
        assert done.stdout == "opened before a fork; open another one here\n"


class TestRoundTrips:
    @pytest.fixture
    def proxy(self, databases: Databases) -> Iterator[PostgresProxy]:
        with PostgresProxy(databases.server) as proxy:
            yield proxy

    def test_a_batch_of_any_size_takes_two_and_a_read_takes_one(self, proxy: PostgresProxy, url: str) -> None:
        database = url.partition("?")[0].rpartition("/")[2]
        with closing(PostgresStore(proxy.url(database))) as opened:
            epochs = {partition: fence.epoch for partition, fence in opened.acquire_fences([P0, P1], "a").items()}
            known = record(1)
            commit(opened, [StartSession("old", FIRST_LIFE), PutItem("old", item("m"), 1)], [known], epochs=epochs)
            before = proxy.trips
            sequences = {P0: 1, P1: 0}
            for size in (1, 100):
                names = [f"s{size}-{number}" for number in range(size)]
                changes = [
                    StartSession("old", SECOND_LIFE if size == 1 else FIRST_LIFE),
                    DeleteItem("old", "m", 2 * size),
                    *(
                        change
                        for name in names
                        for change in (StartSession(name, FIRST_LIFE), PutItem(name, item("m"), 1))
                    ),
                ]
                with opened.transaction(epochs) as transaction:
                    transaction.load([known.command_id], [("old", "m"), *((name, "m") for name in names)])
                    records = []
                    for partition in (P0, P1):
                        records += [
                            record(sequences[partition] + nth, partition=partition) for nth in range(1, size + 1)
                        ]
                        sequences[partition] += size
                    transaction.apply(changes, records, {known.command_id: 2_000 + size})
            assert proxy.trips - before == 2 * 2
            assert opened.heads([P0, P1]) == sequences
            assert opened.stored_sessions(["old", *names]).keys() == {"old", *names}
            assert opened.feedback("s1-0") is not None
            assert opened.record(known.command_id) is not None
            assert len(opened.history("s", (0, 0, 0), 1000)) == sum(sequences.values())
            assert len(opened.outcomes(P0, 0, 1000)) == sequences[P0]
            assert opened.session_ids(0, 1) == [(1, "old")]
            assert opened.prune(expired_before=0, limit=10) == 0
            opened.health()
            assert proxy.trips - before == 2 * 2 + 9
            # One that locks nothing and answers from nothing is still checked and committed.
            with opened.transaction(epochs):
                pass
            assert proxy.trips - before == 2 * 2 + 9 + 2


class TestText:
    LONG: ClassVar = ["l" * LONGEST_KEY, "l" * LONGEST_KEY + "a", "l" * LONGEST_KEY + "b", "\U0001f600" * 300_000]

    def test_ids_too_long_for_an_index_are_told_apart_and_come_back_whole(self, store: PostgresStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        for nth, name in enumerate(self.LONG, start=1):
            puts = [PutItem(name, item(other), revision) for revision, other in enumerate(self.LONG[:nth], start=1)]
            changes: list[Change] = [StartSession(name, FIRST_LIFE), *puts]
            commit(store, changes, [record(nth, session_id=name)], epochs={P0: epoch})
        for nth, name in enumerate(self.LONG, start=1):
            assert message_ids(store, name) == self.LONG[:nth]
            assert [outcome.sequence for outcome in store.history(name, (0, 0, 0), 10)] == [nth]
        assert [name for _, name in store.session_ids(0, 10)] == self.LONG
        assert store.stored_sessions([*self.LONG, "l"]).keys() == set(self.LONG)

    def test_no_short_id_has_the_key_of_a_long_one(self) -> None:
        assert key_of(self.LONG[1])[:1] == b"\xff"
        assert len({key_of(name) for name in self.LONG}) == len(self.LONG)


class TestPlaces:
    def test_sessions_that_two_writers_start_at_once_get_places_in_the_order_of_their_commits(
        self, store: PostgresStore
    ) -> None:
        """Or whoever reads on from the last place that it saw would miss one."""
        with ThreadPoolExecutor(1) as pool:
            with store.transaction({}) as first:
                first.apply([StartSession("first", FIRST_LIFE)], [], {})
                second = pool.submit(commit, store, [StartSession("second", FIRST_LIFE)])
                assert store.session_ids(0, 10) == []
            second.result()
        assert store.session_ids(0, 10) == [(1, "first"), (2, "second")]
        assert store.session_ids(1, 10) == [(2, "second")]

    def test_partitions_that_start_no_sessions_do_not_wait_for_each_other(self, store: PostgresStore) -> None:
        commit(store, [StartSession("s", FIRST_LIFE), StartSession("t", FIRST_LIFE)])
        epochs = {partition: fence.epoch for partition, fence in store.acquire_fences([P0, P1], "a").items()}
        with store.transaction({P0: epochs[P0]}) as first:
            first.apply([PutItem("s", item("m"), 1)], [record(1)], {})
            commit(store, [PutItem("t", item("m"), 1)], [record(1, partition=P1)], epochs={P1: epochs[P1]})
        assert store.heads([P0, P1]) == {P0: 1, P1: 1}


class TestPrune:
    def test_leaves_what_an_open_batch_answers_from(self, store: PostgresStore) -> None:
        """The batch may be about to give it a later deadline: a duplicate must not outlive the record that it met."""
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        records = [record(number, expires_at=number) for number in (1, 2)]
        commit(store, records=records, epochs={P0: epoch})
        with store.transaction({P0: epoch}) as transaction:
            transaction.load([records[0].command_id], [])
            assert store.prune(expired_before=10, limit=10) == 1
            transaction.apply([], [], {records[0].command_id: 20})
        assert store.prune(expired_before=10, limit=10) == 0
        assert store.health().commands == 1


class TestSchema:
    def test_looking_makes_nothing(self, databases: Databases, bare: str) -> None:
        assert find_store(databases.server.url(bare)) is None
        assert databases.server.execute("SELECT to_regnamespace('session_feedback')", bare) == [(None,)]

    @pytest.mark.process
    def test_many_processes_and_threads_may_make_it_at_once(self, databases: Databases, bare: str) -> None:
        url = databases.server.url(bare)
        script = "import sys; from persistence.sidecar import open_store; open_store(sys.argv[1]).close()"
        others = [subprocess.Popen([sys.executable, "-c", script, url]) for _ in range(2)]
        together = threading.Barrier(8)

        def make() -> None:
            together.wait()
            open_store(url).close()

        with ThreadPoolExecutor(8) as pool:
            for made in [pool.submit(make) for _ in range(8)]:
                made.result()
        assert [other.wait(60) for other in others] == [0, 0]
        with closing(open_store(url)) as opened:
            assert opened.health().schema_version == postgres_schema.SCHEMA_VERSION

    def test_an_older_one_is_brought_up_to_date_as_a_whole_or_not_at_all(
        self, databases: Databases, bare: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = databases.server.url(bare)
        with closing(open_store(url)) as older:
            commit(older, [StartSession("s", FIRST_LIFE), PutItem("s", item("m"), 1)])
        step = ("ALTER TABLE fence ADD COLUMN remark text", "CREATE TABLE fence (x int)")
        monkeypatch.setattr(postgres_schema, "SCHEMA_VERSION", postgres_schema.SCHEMA_VERSION + 1)
        with monkeypatch.context() as patched:
            patched.setattr(postgres_schema, "MIGRATIONS", (*postgres_schema.MIGRATIONS, step))
            with pytest.raises(StoreUnavailable, match='"fence" already exists'):
                open_store(url)
        monkeypatch.setattr(postgres_schema, "MIGRATIONS", (*postgres_schema.MIGRATIONS, step[:1]))
        with closing(open_store(url)) as newer:
            assert newer.health().schema_version == postgres_schema.SCHEMA_VERSION
            assert message_ids(newer, "s") == ["m"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("UPDATE session_feedback.meta SET value = 99 WHERE name = 'schema'", "schema 99, this one knows up to 1"),
            ("UPDATE session_feedback.meta SET value = 7 WHERE name = 'application'", "is another program's"),
            ("ALTER TABLE session_feedback.meta RENAME TO metadata", "is another program's"),
        ],
    )
    def test_a_newer_or_foreign_one_is_refused_and_left_alone(
        self, databases: Databases, bare: str, change: str, words: str
    ) -> None:
        url = databases.server.url(bare)
        open_store(url).close()
        databases.server.execute(change, bare)
        for look in (open_store, find_store):
            with pytest.raises(StoreForeign, match=words):
                look(url)

    def test_one_that_was_emptied_while_in_use_is_not_made_anew(self, databases: Databases, bare: str) -> None:
        with closing(open_store(databases.server.url(bare))) as opened:
            databases.server.execute("DROP SCHEMA session_feedback CASCADE", bare)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"gone|emptied"):
                    opened.feedback("s")
                databases.server.cut_connections(bare)


class TestRoles:
    def test_a_worker_needs_no_more_and_a_reader_still_less_than_the_page_says(
        self, databases: Databases, bare: str
    ) -> None:
        server = databases.server
        page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
        grants = page.partition("```sql\n")[2].partition("```")[0]
        open_store(server.url(bare)).close()
        for role in ("feedback_worker", "feedback_reader"):
            server.execute(f"CREATE ROLE {role} LOGIN")
        with server.connect(bare) as owner:
            owner.execute(grants)
        with closing(open_store(server.url(bare, user="feedback_worker"))) as worker:
            worker.set_topology(TOPOLOGY, replacing=None)
            epoch = worker.acquire_fences([P0], "a")[P0].epoch
            commit(worker, [StartSession("s", FIRST_LIFE), PutItem("s", item("m"), 1)], [record(1)], epochs={P0: epoch})
            commit(worker, [DeleteItem("s", "m", 2), PutItem("s", item("n"), 3)])
            commit(worker, [StartSession("s", SECOND_LIFE), PutItem("s", item("o"), 4)])
            assert worker.prune(expired_before=2**60, limit=10) == 1
            worker.retire(TOPOLOGY)
        with closing(open_store(server.url(bare, user="feedback_reader"))) as reader:
            assert message_ids(reader, "s") == ["o"]
            assert (reader.topology(), reader.heads([P0])) == (TOPOLOGY, {P0: 1})
            assert (reader.outcomes(P0, 0, 9), reader.history("s", HISTORY_START, 9)) == ([], [])
            assert reader.stored_sessions(["s"]).keys() == {"s"}
            assert reader.session_ids(0, 9) == [(1, "s")]
            assert reader.health().sessions == 1
            with pytest.raises(StoreUnavailable, match="permission denied"):
                commit(reader, [PutItem("s", item("p"), 5)])
            with pytest.raises(StoreUnavailable, match="permission denied"):
                reader.acquire_fences([P0], "b")


class TestUrl:
    @pytest.mark.parametrize(
        "form",
        [
            "postgresql://u:s3cr3t@h:port/d",
            "postgresql://u:s3cr3t@h/d?nonsense=s3cr3t",
            "postgresql://u:p/s3cr3t@h/d",
            "postgresql://u:p@s3cr3t@h/d",
            "postgres://u:s3cr3t@[",
        ],
    )
    def test_one_that_is_wrong_is_refused_and_never_repeated(self, form: str) -> None:
        with pytest.raises(SettingsInvalid, match="not a URL that PostgreSQL's own library takes") as refusal:
            open_store(form)
        assert "s3cr3t" not in str(refusal.value) + str(refusal.value.__cause__)
        assert "s3cr3t" not in public_url(form)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql://ada:s3cr3t@h:5433,i/d?password=s3cr3t&sslmode=require", "postgresql://ada@h:5433,i/d"),
            ("postgresql://ada@[::1]:5432/d", "postgresql://ada@[::1]:5432/d"),
            ("postgres:///d?host=/run&password=s3cr3t", "postgres:///d"),
            ("postgresql://h/d", "postgresql://h/d"),
            ("postgresql://u:p?s3cr3t@h/d", "postgresql://…"),
            ("postgresql://u:p#s3cr3t@h/d", "postgresql://…"),
            ("sqlite:///a?b@c", "sqlite:///a?b@c"),
        ],
    )
    def test_what_is_shown_of_one_holds_no_password(self, url: str, shown: str) -> None:
        assert public_url(url) == shown

    def test_a_password_is_used_and_never_said(self, databases: Databases, bare: str) -> None:
        server = databases.server
        server.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")
        server.execute(f'GRANT CREATE ON DATABASE "{bare}" TO {GUARDED}')
        with closing(open_store(server.url(bare, user=GUARDED, password=PASSWORD))) as opened:
            shown = f"{opened.health()} {opened!r} {opened.__dict__}"
        with pytest.raises(StoreUnavailable, match=r"refuses our login|out of reach") as refusal:
            open_store(server.url(bare, user=GUARDED, password=PASSWORD + "x"))
        cause: BaseException | None = refusal.value
        while cause is not None:
            shown += f"{cause} {cause!r}"
            cause = cause.__cause__ or cause.__context__
        assert "s3cr3t" not in shown
        assert "päss" not in shown

    def test_without_the_extra_it_is_said_what_to_install(self, url: str) -> None:
        script = f"""
import sys
sys.modules["psycopg"] = None
from feedback.errors import SettingsInvalid
from persistence.sidecar import open_store
try:
    open_store({url!r})
except SettingsInvalid as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert "pip install 'session-feedback[postgres]'" in done.stdout

    def test_a_worker_on_sqlite_loads_no_driver(self) -> None:
        script = (
            "import sys, app.cli.worker, worker.process; print([m for m in sys.modules if m.startswith('psycopg')])"
        )
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert done.stdout == "[]\n"
