"""Media at the edges: in use, damaged, in the way. A source is never changed, a target never half written."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from feedback.errors import InvalidRequest, MediumInvalid, MediumUnavailable, StoreUnavailable
from persistence.atomic_file import staged_file
from persistence.interchange import per_record, sqlite_unit
from persistence.interchange.export import export
from persistence.interchange.media import Form, read_medium, write_whole
from persistence.interchange.per_record import PerRecordUnit
from persistence.interchange.rows import Found, Ignored, Refusal, Row, Wrote
from persistence.interchange.single import NAME, document_of
from persistence.sidecar import SqliteStore, open_store
from persistence.sidecar.store import PutItem, StartSession
from tests.interchanging import LIFE, NOON, item, row

ROWS = (row("a", item("m1")), row("b", item("m2", version=2)))
OTHER = row("a", item("m1", note="other"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of the original's, alone in a directory."""
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "storage.sqlite"
    write_whole(Form.SQLITE, path, ROWS, overwrite=False, check=False)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def broken_off() -> Iterator[Row]:
    """Rows whose source fails."""
    yield ROWS[0]
    raise StoreUnavailable("gone")


class TestDatabase:
    def test_one_with_a_log_that_was_put_away_is_read_and_left_alone(self, database: Path) -> None:
        """SQLite would put a new log beside it."""
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        assert names(database.parent) == ["storage.sqlite"]
        before = database.read_bytes()
        assert before[18:20] == b"\2\2"
        assert list(read_medium(Form.SQLITE, database)) == list(ROWS)
        assert (database.read_bytes(), names(database.parent)) == (before, ["storage.sqlite"])

    def test_one_that_is_opened_meanwhile_is_said_to_be(self, database: Path) -> None:
        """What was read without its log may be old: it counts for nothing."""
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        reading = read_medium(Form.SQLITE, database)
        next(reading)
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("DELETE FROM u_message_feedback_sessions")
            with pytest.raises(MediumUnavailable, match="meanwhile"):
                list(reading)

    def test_what_stands_in_a_log_that_is_in_use_is_read(self, database: Path) -> None:
        """The original may be running."""
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("DELETE FROM u_message_feedback_sessions WHERE key = 'a'")
            assert "storage.sqlite-wal" in names(database.parent)
            assert list(read_medium(Form.SQLITE, database)) == [ROWS[1]]

    def test_whoever_has_it_open_can_go_on_writing(self, database: Path) -> None:
        """No lock is held from one row to the next; what changes meanwhile is read as it is then."""
        reading = read_medium(Form.SQLITE, database)
        assert next(reading) == ROWS[0]
        with closing(sqlite3.connect(database, timeout=0)) as connection, connection:
            connection.execute(
                "INSERT OR REPLACE INTO u_message_feedback_sessions SELECT key, value FROM u_message_feedback_sessions"
            )
        assert list(reading) == list(ROWS)

    def test_one_that_is_locked_is_tried_again_later(self, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0))
        with closing(connect(database, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            with pytest.raises(MediumUnavailable, match="locked"):
                list(read_medium(Form.SQLITE, database))

    @pytest.mark.parametrize("damage", ["cut", "garbage", "no units"])
    def test_a_damaged_one_gives_nothing_out(self, database: Path, damage: str) -> None:
        if damage == "no units":
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("DROP TABLE units")
        else:
            size = database.stat().st_size
            with database.open("r+b") as file:
                file.seek(4096)
                file.write(b"\xff" * (size - 4096))
                file.truncate(size - 5000 if damage == "cut" else size)
        with pytest.raises(MediumInvalid, match="malformed-medium"):
            next(read_medium(Form.SQLITE, database))

    @pytest.mark.parametrize("statement", ["PRAGMA user_version = 0", "DELETE FROM units", "empty"])
    def test_a_fresh_one_is_empty(self, database: Path, statement: str) -> None:
        if statement == "empty":
            database.write_bytes(b"")
        else:
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute(statement)
        assert list(read_medium(Form.SQLITE, database)) == []

    def test_a_row_that_is_no_text_is_refused(self, database: Path) -> None:
        """No table of the original's takes one."""
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DROP TABLE u_message_feedback_sessions")
            connection.execute("CREATE TABLE u_message_feedback_sessions (key, value)")
            connection.execute("INSERT INTO u_message_feedback_sessions VALUES (7, '{}'), ('a', x'00'), ('b', '')")
        assert [type(one) for one in read_medium(Form.SQLITE, database)] == [Refusal] * 3

    def test_one_with_a_row_past_all_reason_is_invalid_before_anything_is_given_out(
        self, database: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a document is: no row is held in memory that would fill it."""
        monkeypatch.setattr(sqlite_unit, "MAX_VALUE_CHARS", 1000)
        assert list(read_medium(Form.SQLITE, database)) == list(ROWS)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("INSERT INTO u_message_feedback_sessions VALUES ('z', ?)", ("x" * 1001,))
        found = read_medium(Form.SQLITE, database)
        with pytest.raises(MediumInvalid, match="string or blob too big"):
            next(found)


class TestTargets:
    @pytest.mark.parametrize("form", [Form.JSON, Form.SQLITE])
    def test_an_export_that_is_broken_off_leaves_what_was_there(self, form: Form, tmp_path: Path) -> None:
        target = tmp_path / "target"
        write_whole(form, target, [OTHER], overwrite=False, check=False)
        before = target.read_bytes()
        with pytest.raises(StoreUnavailable):
            write_whole(form, target, broken_off(), overwrite=True, check=False)
        assert (target.read_bytes(), names(tmp_path)) == (before, ["target"])
        write_whole(form, target, ROWS, overwrite=True, check=False)
        assert list(read_medium(form, target)) == list(ROWS)

    def test_only_its_own_kind_is_replaced(self, tmp_path: Path) -> None:
        """A slip of the hand costs no ratings: above all not those of the store itself."""
        with closing(open_store(f"sqlite:///{tmp_path / 'store'}")):
            pass
        write_whole(Form.JSON, tmp_path / "document", ROWS, overwrite=False, check=False)
        write_whole(Form.SQLITE, tmp_path / "database", ROWS, overwrite=False, check=False)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        for form, name in (
            (Form.JSON, "database"),
            (Form.JSON, "store"),
            (Form.SQLITE, "document"),
            (Form.SQLITE, "store"),
        ):
            with pytest.raises(InvalidRequest, match="it is not replaced"):
                write_whole(form, tmp_path / name, ROWS, overwrite=True, check=False)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("form", [Form.JSON, Form.SQLITE])
    def test_what_turns_up_meanwhile_is_not_overwritten(self, form: Form, tmp_path: Path) -> None:
        target = tmp_path / "target"

        def rows() -> Iterator[Row]:
            yield ROWS[0]
            target.write_bytes(b"faster")

        with pytest.raises(InvalidRequest, match="File exists"):
            write_whole(form, target, rows(), overwrite=False, check=False)
        assert (target.read_bytes(), names(tmp_path)) == (b"faster", ["target"])

    def test_a_root_is_made_for_its_owner_alone(self, tmp_path: Path) -> None:
        """As the original makes it; in a root the single document has its own name."""
        list(PerRecordUnit(tmp_path / "deep" / "root").write(ROWS, overwrite=False, now=NOON, check=False))
        made = tmp_path / "deep" / "root" / "message_feedback" / "sessions"
        assert [path.stat().st_mode & 0o777 for path in (made, made.parent, made.parents[1], made / "a.json")] == [
            *[0o700] * 3,
            0o600,
        ]
        write_whole(Form.JSON, tmp_path / "deep", ROWS, overwrite=False, check=False)
        assert list(read_medium(Form.JSON, tmp_path / "deep")) == list(ROWS)
        assert (tmp_path / "deep" / NAME).read_bytes() == b"".join(document_of(ROWS))

    def test_a_directory_is_no_target_for_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="no file"):
            write_whole(Form.SQLITE, tmp_path, ROWS, overwrite=True, check=False)

    def test_a_session_that_the_original_would_not_take_is_refused(self, tmp_path: Path) -> None:
        """Two items of one version would have it refuse the whole medium."""
        with closing(SqliteStore.in_memory()) as store:
            with store.transaction({}) as transaction:
                twins = [PutItem("twins", item(name), place) for place, name in enumerate("xy", start=1)]
                starts = [StartSession("twins", LIFE), StartSession("s", LIFE)]
                transaction.apply([*starts, *twins, PutItem("s", item("m"), 1)], (), {})
            report = export(store, Form.JSON, tmp_path / "out.json", overwrite=False, check=False, now=NOON)
        assert (report.sessions, report.items, report.refused) == (1, 1, 1)
        assert report.refusals == (Refusal('sessions["twins"].items[1].version', "is that of items[0], too"),)
        assert list(read_medium(Form.JSON, tmp_path / "out.json")) == [row("s", item("m"))]


class TestDocuments:
    def put(self, root: Path, *rows: Row, overwrite: bool = False, check: bool = False) -> list[object]:
        """Outcomes without the rows that they are about."""
        written = PerRecordUnit(root).write(rows, overwrite=overwrite, now=NOON, check=check)
        return [outcome if isinstance(outcome, Wrote) else outcome.path for _, outcome in written]

    def read(self, root: Path) -> list[Found]:
        return list(read_medium(Form.PER_RECORD, root))

    def test_one_that_differs_stays_unless_it_may_be_replaced(self, tmp_path: Path) -> None:
        """What is there to the letter is no conflict: a run that was broken off is done again."""
        assert self.put(tmp_path, *ROWS) == [Wrote.NOW, Wrote.NOW]
        assert self.put(tmp_path, *ROWS) == [Wrote.ALREADY, Wrote.ALREADY]
        assert self.put(tmp_path, OTHER) == ["message_feedback/sessions/a.json"]
        assert self.read(tmp_path) == list(ROWS)
        assert self.put(tmp_path, OTHER, overwrite=True, check=True) == [Wrote.NOW]
        assert self.read(tmp_path) == list(ROWS)
        assert self.put(tmp_path, OTHER, overwrite=True) == [Wrote.NOW]
        assert self.read(tmp_path) == [OTHER, ROWS[1]], "one of another Session stays"

    def test_records_of_the_single_layout_are_not_made_void(self, tmp_path: Path) -> None:
        """A first document does that: so it takes a word, and leaves the file as it is."""
        legacy = b"".join(document_of([*ROWS, row("../up", item("m1"))]))
        (tmp_path / NAME).write_bytes(legacy)
        assert len(self.read(tmp_path)) == 3
        with pytest.raises(FileExistsError, match="import them first"):
            self.put(tmp_path, OTHER)
        assert names(tmp_path) == [NAME]
        assert self.put(tmp_path, OTHER, row("../up"), overwrite=True) == [
            Wrote.NOW,
            'message_feedback/sessions/"../up"',
        ]
        assert self.read(tmp_path) == [OTHER]
        assert (tmp_path / NAME).read_bytes() == legacy

    def test_one_that_is_no_record_is_said_or_set_aside(self, tmp_path: Path) -> None:
        self.put(tmp_path, *ROWS)
        directory = tmp_path / "message_feedback" / "sessions"
        (directory / "a.json").write_bytes(b'{"version":0,"record":null}')
        bad = "message_feedback/sessions/a.json $.record"
        assert self.put(tmp_path, ROWS[1]) == [bad, Wrote.ALREADY]
        assert self.put(tmp_path, ROWS[1], overwrite=True, check=True) == [Wrote.ALREADY]
        assert "a.json" in names(directory)
        assert self.put(tmp_path, ROWS[1], overwrite=True) == [Wrote.ALREADY]
        assert names(directory) == ["a.json.bak.202608211230", "b.json"]

    def test_what_is_no_file_or_too_large_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pipe would block for ever."""
        self.put(tmp_path, *ROWS)
        directory = tmp_path / "message_feedback" / "sessions"
        os.mkfifo(directory / "pipe.json")
        (directory / "gone.json").symlink_to("nowhere")
        assert self.read(tmp_path) == [
            *ROWS,
            Ignored("message_feedback/sessions/gone.json", "no file"),
            Ignored("message_feedback/sessions/pipe.json", "no file"),
        ]
        assert self.put(tmp_path, row("pipe"), row("gone"), overwrite=True) == [Wrote.NOW, Wrote.NOW]
        monkeypatch.setattr(per_record, "MAX_VALUE_CHARS", 100)
        assert [type(one) for one in self.read(tmp_path)] == [Refusal] * 4

    def test_a_directory_in_the_way_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "message_feedback" / "sessions" / "a.json").mkdir(parents=True)
        assert self.put(tmp_path, *ROWS, overwrite=True) == ["message_feedback/sessions/a.json", Wrote.NOW]


class TestStagedFile:
    def test_it_takes_its_place_whole_or_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        with staged_file(path, replace=False) as staged:
            staged.write_bytes(b"new")
            assert not path.exists()
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
        with pytest.raises(FileExistsError), staged_file(path, replace=False) as staged:
            staged.write_bytes(b"newer")
        with pytest.raises(KeyError), staged_file(path, replace=True) as staged:
            staged.write_bytes(b"half")
            raise KeyError
        assert (path.read_bytes(), names(tmp_path)) == (b"new", ["file"])
        with staged_file(path, replace=True) as staged:
            staged.write_bytes(b"newer")
        assert (path.read_bytes(), names(tmp_path)) == (b"newer", ["file"])
