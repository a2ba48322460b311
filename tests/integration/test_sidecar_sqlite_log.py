"""The SQLite engine's write-ahead log: how it grows, when it is copied, and what of it survives."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persistence.sidecar import SqliteStore, sqlite_wal
from persistence.sidecar.sqlite_connections import WAL_KEPT_BYTES
from tests.conformance.sidecar_engines import message_ids
from tests.faulty_disk import SmallDisk
from tests.integration.sidecar_children import child, line_of, rate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, busy_timeout=0.2)) as opened:
        yield opened


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def frames(path: Path) -> int:
    """Pages in the log since it last started anew: 32 bytes of header, then 24 and 4,096 bytes for each."""
    content = log_of(path).read_bytes()
    salts = content[16:24]
    return sum(content[place + 8 : place + 16] == salts for place in range(32, len(content), 4096 + 24))


def test_a_commit_writes_as_much_in_a_session_of_10_items_as_in_one_of_10_000(tmp_path: Path) -> None:
    """Pages, not time: what an update and a new item add to the log."""
    written = []
    for size in (10, 10_000):
        path = tmp_path / str(size)
        with closing(SqliteStore(path)) as opened:
            rate(opened, *(f"m{number:05}" for number in range(size)))
        with closing(SqliteStore(path)) as opened:
            rate(opened, "m00005", after=size)
            update = frames(path)
            rate(opened, "m99999", after=size + 1)
            written.append((update, frames(path) - update))
    (small_update, small_new), (large_update, large_new) = written
    assert small_update == large_update
    assert large_new <= small_new + 2  # a page may have to be split


def test_it_is_copied_and_started_anew_before_it_grows_large(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "_CHECKPOINT_PAGES", 50)
    size = path.stat().st_size
    for revision in range(1000):
        rate(store, f"m{revision}", after=revision)
    assert frames(path) < 200
    assert log_of(path).stat().st_size < 3 * 2**20
    assert path.stat().st_size > 2 * size
    assert store.health().findings == ()
    assert len(message_ids(store, "s")) == 1000


def test_it_is_copied_by_what_it_holds_and_not_by_how_much_was_changed(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a batch share pages; each copying costs a sync of the main file."""
    monkeypatch.setattr(sqlite_wal, "_CHECKPOINT_PAGES", 300)
    copied, changes = 0, 0
    copy = store._log.checkpoint

    def counted() -> None:
        nonlocal copied
        copied += 1
        copy()

    monkeypatch.setattr(store._log, "checkpoint", counted)
    for revision in range(0, 64 * 200, 64):
        rate(store, *(f"m{number}" for number in range(64)), after=revision)
        changes += 64
    assert 1 < copied < changes / 300, "at a page a change it would be more often"


def test_it_is_longer_than_what_it_holds(store: SqliteStore, path: Path) -> None:
    """To sync a file that grew takes twice as long as one of which the blocks are there."""
    log = log_of(path)
    rate(store, "m0")
    rate(store, "m1", after=1)
    room = log.stat().st_size
    assert room > 4096 * (frames(path) + 50)
    revision = 2
    while 32 + frames(path) * (4096 + 24) < room - 20 * (4096 + 24):
        assert log.stat().st_size == room
        rate(store, f"m{revision}", after=revision)
        revision += 1
    for _ in range(20):
        rate(store, f"m{revision}", after=revision)
        revision += 1
    assert log.stat().st_size > 1.5 * room
    assert len(message_ids(store, "s")) == revision


def test_room_that_another_process_made_is_no_growth(store: SqliteStore, path: Path) -> None:
    with closing(SqliteStore(path)) as other:
        for revision in range(0, 40, 2):
            rate(store, f"m{revision}", after=revision)
            rate(other, f"m{revision + 1}", after=revision + 1)
    assert log_of(path).stat().st_size < 2 * 2**20


def test_it_grows_no_longer_than_what_is_kept_of_it(store: SqliteStore, path: Path) -> None:
    revision = 0
    for _ in range(40):
        rate(store, *(f"m{number}" for number in range(revision, revision + 5000)), after=revision)
        revision += 5000
        assert log_of(path).stat().st_size < 2 * WAL_KEPT_BYTES
    rate(store, "last", after=revision)
    assert log_of(path).stat().st_size <= WAL_KEPT_BYTES + 2**20
    assert store.health().findings == ()


def test_what_a_killed_process_left_in_it_is_there(path: Path) -> None:
    """Zeros behind the last commit end it, as does what an earlier round left there."""
    script = """
import sys
from pathlib import Path
from persistence.sidecar import SqliteStore
from tests.integration.sidecar_children import rate
store = SqliteStore(Path(sys.argv[1]))
for done in range(50):
    rate(store, f"m{done}", after=done)
print("done", flush=True)
sys.stdin.readline()
"""
    with child(script, path) as process:
        assert line_of(process) == "done"
        process.kill()
    assert log_of(path).stat().st_size > 4096 * (frames(path) + 20)
    with closing(SqliteStore(path)) as opened:
        assert message_ids(opened, "s") == [f"m{number}" for number in range(50)]
        rate(opened, "next", after=50)


def test_on_a_disk_that_is_nearly_full_commits_have_what_is_left(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", 2**20)
    try:
        path = disk.path / "sidecar.sqlite3"
        with closing(SqliteStore(path)) as store:
            rate(store, "m0")
            disk.fill()
            with (disk.path / "ballast").open("r+b") as ballast:
                ballast.truncate((disk.path / "ballast").stat().st_size - 160 * 2**10)
            for revision in range(1, 5):
                rate(store, f"m{revision}", after=revision)
            assert log_of(path).stat().st_size == 32 + frames(path) * (4096 + 24)
            assert len(message_ids(store, "s")) == 5
    finally:
        disk.unmount()


def test_a_reader_that_holds_it_stops_no_commit(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "_CHECKPOINT_PAGES", 50)
    rate(store, "m0")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM item").fetchone() == (1,)
        for revision in range(1, 100):
            rate(store, f"m{revision}", after=revision)
        assert reader.execute("SELECT count(*) FROM item").fetchone() == (1,)
    assert len(message_ids(store, "s")) == 100


def test_it_is_not_copied_while_another_process_may_restart_it(store: SqliteStore, path: Path) -> None:
    """SQLite before 3.51.3 may then lose pages of that process's next commit."""
    rate(store, "m")
    untouched = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store._log.checkpoint()
        assert any("checkpoint failed" in finding for finding in store.health().findings)
        assert path.read_bytes() == untouched
    store._log.checkpoint()
    assert store.health().findings == ()
    assert path.read_bytes() != untouched
