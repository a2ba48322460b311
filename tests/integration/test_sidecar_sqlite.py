"""The SQLite engine on real files: what it refuses, what it survives, and that it syncs what it says."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from feedback.errors import SettingsInvalid, StoreForeign, StoreUnavailable
from persistence.sidecar import SqliteStore, open_store, schema
from tests.conformance.sidecar_engines import P0, commit, message_ids, record
from tests.integration.sidecar_children import child, line_of, rate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, busy_timeout=0.2)) as opened:
        yield opened


OPEN_FILES = Path("/proc/self/fd")
SETTINGS = {
    "journal_mode": "wal",
    "synchronous": 2,
    "fullfsync": 1,
    "wal_autocheckpoint": 0,
    "application_id": schema.APPLICATION_ID,
}


class TestSettings:
    def test_the_file_bears_our_application_id(self, store: SqliteStore, path: Path) -> None:
        assert path.read_bytes()[68:72] == b"FBKS"

    def test_every_connection_syncs_each_commit_of_a_write_ahead_log(self, store: SqliteStore) -> None:
        with store._connections.lease() as first, store._connections.lease() as second:
            for connection in (first, second):
                pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS}
                assert pragmas == SETTINGS

    def test_a_closed_store_is_one_file(self, path: Path) -> None:
        with closing(SqliteStore(path)) as opened:
            rate(opened, "m")
            assert sorted(entry.name for entry in path.parent.iterdir()) == [
                path.name + end for end in ("", "-shm", "-wal")
            ]
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_connections_are_as_many_as_operations_at_one_time(self, store: SqliteStore) -> None:
        """Threads that ended leave none behind."""
        for _ in range(10):
            thread = threading.Thread(target=store.feedback, args=("s",))
            thread.start()
            thread.join()
        assert len(store._connections._idle) == 1

    @pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="the system does not list open files")
    def test_no_file_stays_open(self, path: Path) -> None:
        with closing(SqliteStore(path)) as opened:
            with opened._connections.lease(), opened._connections.lease():
                pass
            opened._connections._retire_all()
            rate(opened, "m")
        links = [link.readlink() for link in OPEN_FILES.iterdir() if link.is_symlink()]
        assert [link for link in links if path.name in link.name] == []

    @pytest.mark.process
    def test_a_forked_child_may_not_use_its_parents_connections(self, path: Path) -> None:
        script = """
import os, sys
from pathlib import Path
from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
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
        with child(script, path) as process:
            assert line_of(process) == "opened before a fork; open another one here"
            assert process.wait(30) == 0

    def test_a_symbolic_link_is_followed(self, store: SqliteStore, path: Path) -> None:
        rate(store, "m")
        link = path.parent / "link"
        link.symlink_to(path)
        with closing(SqliteStore(link)) as linked:
            rate(linked, "n", after=1)
        assert message_ids(store, "s") == ["m", "n"]


class TestUrl:
    def test_relative_and_absolute_paths_taken_to_the_letter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "ä b").mkdir()
        names = ("plain", "ä b/50%41?mode=ro#x")
        for name in names:
            open_store(f"sqlite:///{name}").close()
            open_store(f"sqlite:///{tmp_path}/{name}.absolute").close()
        assert all((tmp_path / name).is_file() and (tmp_path / f"{name}.absolute").is_file() for name in names)

    @pytest.mark.parametrize("url", ["mysql://host/db", "sqlite://x/y", "sqlite:///", "sqlite:////", "file", ""])
    def test_what_is_supported_is_said(self, url: str) -> None:
        with pytest.raises(SettingsInvalid, match="sqlite:///relative/path"):
            open_store(url)


class TestForeign:
    def assert_refused_untouched(self, path: Path, reason: str) -> None:
        before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
        with pytest.raises(StoreForeign, match=reason) as refusal:
            SqliteStore(path)
        assert str(path) in str(refusal.value)
        assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before

    @pytest.mark.parametrize(
        "content", [b"x", b"y" * 100, b"y" * 511, b"y" * 512, b"a longer text\n" * 1000, bytes(8192)]
    )
    def test_a_file_that_is_no_database(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.assert_refused_untouched(path, "not a SQLite database")

    @pytest.mark.parametrize("pragma", ["user_version = 1", "application_id = 1"])
    def test_another_programs_database(self, path: Path, pragma: str) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.executescript(f"PRAGMA {pragma}; CREATE TABLE units (name TEXT PRIMARY KEY)")
        self.assert_refused_untouched(path, "another program's database")

    def test_another_programs_database_with_a_log_that_it_left(self, path: Path) -> None:
        """Opening it the usual way would move that log into the database."""
        with closing(sqlite3.connect(path)) as other:
            other.executescript("PRAGMA journal_mode = WAL; CREATE TABLE units (name TEXT PRIMARY KEY)")
            self.assert_refused_untouched(path, "another program's database")

    def test_a_newer_schema(self, path: Path) -> None:
        with closing(SqliteStore(path)) as opened:
            rate(opened, "m")
        with closing(sqlite3.connect(path)) as newer:
            newer.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
            newer.commit()
        self.assert_refused_untouched(path, "newer program .schema 99")


class TestUnavailable:
    def test_a_missing_directory(self, path: Path) -> None:
        with pytest.raises(StoreUnavailable, match=r"nowhere/file.*cannot be opened"):
            SqliteStore(path.parent / "nowhere" / "file")
        assert not (path.parent / "nowhere").exists()

    def test_a_directory_or_something_else_in_its_place(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            SqliteStore(path)
        assert list(path.iterdir()) == []
        os.mkfifo(path.parent / "pipe")
        with pytest.raises(StoreUnavailable):
            SqliteStore(path.parent / "pipe")

    def test_a_database_cut_short(self, path: Path) -> None:
        with closing(SqliteStore(path)) as opened:
            rate(opened, *map(str, range(500)))
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(StoreUnavailable, match="corrupt"), closing(SqliteStore(path)) as opened:
            opened.feedback("s")

    def test_damaged_pages(self, path: Path) -> None:
        with closing(SqliteStore(path)) as opened:
            rate(opened, *map(str, range(500)))
        content = path.read_bytes()
        intact = 16 * 4096  # what is read when the store is opened
        path.write_bytes(content[:intact] + b"\xa5" * (len(content) - intact))
        with closing(SqliteStore(path)) as opened:
            with pytest.raises(StoreUnavailable, match="corrupt"):
                opened.feedback("s")
            path.write_bytes(content)
            assert len(message_ids(opened, "s")) == 500

    def test_text_that_is_not_unicode(self, store: SqliteStore, path: Path) -> None:
        rate(store, "m")
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE item SET note = CAST(x'ff' AS TEXT)")
            other.commit()
        with pytest.raises(StoreUnavailable, match="corrupt"):
            store.feedback("s")

    def test_a_file_that_went_away_is_not_made_anew_and_is_seen_when_it_comes_back(
        self, store: SqliteStore, path: Path
    ) -> None:
        """A commit to a file without a name would be lost; so would everything, in a new store."""
        rate(store, "m")
        elsewhere = path.parent / "elsewhere"
        elsewhere.mkdir()
        files = list(path.parent.glob(f"{path.name}*"))
        for file in files:
            file.rename(elsewhere / file.name)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be opened"):
                rate(store, "n", after=1)
        assert list(path.parent.iterdir()) == [elsewhere]
        for file in files:
            (elsewhere / file.name).rename(file)
        rate(store, "n", after=1)
        assert message_ids(store, "s") == ["m", "n"]

    def test_an_empty_file_put_in_its_place_does_not_become_a_new_store(self, store: SqliteStore, path: Path) -> None:
        rate(store, "m")
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        path.touch()
        with pytest.raises(StoreUnavailable, match="emptied"):
            store.feedback("s")

    def test_locked_by_another_process(self, store: SqliteStore, path: Path) -> None:
        """Readers go on; writers give up after the busy timeout, and go on when the lock is gone."""
        rate(store, "m")
        script = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.close()
print("free", flush=True)
"""
        with child(script, path) as process:
            assert line_of(process) == "locked"
            with pytest.raises(StoreUnavailable, match=r"sidecar\.sqlite3: locked"):
                rate(store, "n", after=1)
            assert message_ids(store, "s") == ["m"]
            process.communicate("\n")
        rate(store, "n", after=1)
        assert message_ids(store, "s") == ["m", "n"]


class TestRecords:
    def test_a_record_past_the_fence_is_a_finding(self, store: SqliteStore, path: Path) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        commit(store, records=[record(1), record(2)], epochs={P0: epoch})
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE fence SET sequence = 1")
            other.commit()
        assert store.health().findings == ("partition 1-0: record 2 lies past the last sequence 1",)


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_log_without_its_database_is_kept(path: Path, left: str) -> None:
    """SQLite would delete it, and with it commits that stand nowhere else: no store, new or running, lets it."""
    away = path.with_name("away")
    with closing(SqliteStore(path)) as running:
        assert running.acquire_fences([P0], "w")[P0].epoch == 1
        path.rename(away)
        if left == "an empty file":
            path.touch()
        for ask in (running.health, lambda: SqliteStore(path)):
            with pytest.raises(StoreUnavailable, match="write-ahead log"):
                ask()
        path.unlink(missing_ok=True)
        away.rename(path)
        assert running.acquire_fences([P0], "w")[P0].epoch == 2
