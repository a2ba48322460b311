"""The schema of a SQLite store: older ones are brought up to date, as a whole or not at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore, schema
from persistence.sidecar.store import PutItem
from tests.conformance.sidecar_engines import P0, commit, item, message_ids, record
from tests.integration.sidecar_children import rate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.sqlite3"


def counted(store: SqliteStore) -> tuple[int, int, int]:
    """Sessions, items and records."""
    health = store.health()
    return health.sessions, health.items, health.commands


def test_an_older_one_is_brought_up_to_date_and_keeps_its_data(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteStore(path)) as older:
        rate(older, "m")
    step = "ALTER TABLE fence ADD COLUMN note TEXT"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, (step,)))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    for _ in range(2):
        with closing(SqliteStore(path)) as newer:
            assert newer.health().schema_version == schema.SCHEMA_VERSION
            assert message_ids(newer, "s") == ["m"]


def test_what_was_counted_before_fences_did_still_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        older.setattr(schema, "SCHEMA_VERSION", 3)
        with closing(SqliteStore(path)) as store, store._connections.lease() as connection:
            connection.execute("UPDATE meta SET value = 40 WHERE name IN ('sessions', 'items', 'commands')")
    with closing(SqliteStore(path)) as store:
        rate(store, "m")
        assert counted(store) == (41, 41, 40)
        epochs = {P0: store.acquire_fences([P0], "w")[P0].epoch}
        commit(store, [PutItem("s", item("n"), 2)], [record(1), record(2)], epochs=epochs)
        assert counted(store) == (41, 42, 42)
        store.prune(expired_before=10**6, limit=1)
        assert counted(store) == (41, 42, 41)


def test_a_step_that_fails_leaves_the_older_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(path).close()
    steps = ("CREATE TABLE half (x INTEGER) STRICT", "CREATE TABLE fence (x INTEGER)")
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, steps))
        patched.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        with pytest.raises(StoreUnavailable, match="fence already exists"):
            SqliteStore(path)
    with closing(SqliteStore(path)) as opened, opened._connections.lease() as connection:
        assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchone() is None


def test_many_may_make_the_store_at_once(path: Path) -> None:
    together = threading.Barrier(8)

    def make() -> None:
        together.wait()
        SqliteStore(path).close()

    with ThreadPoolExecutor(8) as pool:
        for made in [pool.submit(make) for _ in range(8)]:
            made.result()
    with closing(SqliteStore(path)) as opened:
        assert opened.health().findings == ()
