"""Exports for training from a real store and real logs: what is in them, in which order, and what a kill leaves."""

import itertools
import json
import multiprocessing
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from app.training.export import Plan, export
from app.training.filters import Filters
from app.training.jsonl import JsonlOutput
from app.training.output import Output, Record, Skipped, locked
from app.training.parquet import ParquetOutput, schema_of
from app.training.records import AnswerRecord, PairRecord
from feedback.errors import LogUnreadable, SettingsInvalid
from persistence.session_log import SessionLogs
from persistence.session_log.events import Event, assistant_message, user_message
from persistence.sidecar import SidecarStore, SqliteStore
from tests.training_logs import CREATED_AT, Ratings, conversation, identity, item, write_log

ODD = "ö/\0"


class Home:
    """A store and a root with a few Sessions, and exports of them."""

    def __init__(self, home: Path, *, filled: bool = True) -> None:
        self.home, self.root = home, home / "sessions"
        self.store: SidecarStore = SqliteStore(home / "sidecar.sqlite3")
        if filled:
            self._fill()

    def _fill(self) -> None:
        ratings = Ratings(self.store)
        for session_id, of in (("s2", identity()), ("s10", identity("/other")), (ODD, identity(None))):
            write_log(self.root, session_id, conversation(4), of=of)
            liked, disliked = item("a3", note="ü"), item("a1", "negative", at=CREATED_AT + 10)
            ratings.rate(session_id, of, liked, actor="ada")
            ratings.rate(session_id, of, disliked)
        write_log(self.root, "stale", conversation(1), of=identity())
        ratings.rate("stale", identity(created_at=CREATED_AT + 1), item("a1"))
        ratings.rate("gone", identity(), item("a1"))
        path = write_log(self.root, "corrupt", conversation(3), of=identity())
        path.write_bytes(path.read_bytes().replace(b'"seq":9', b'"seq":8'))
        ratings.rate("corrupt", identity(), item("a1"), item("a2"))
        write_log(self.root, "unknown", conversation(1), of=identity())
        ratings.rate("unknown", identity(), item("a1"), item("u1"))
        self._write_regenerated(ratings)
        ratings.commit()

    def _write_regenerated(self, ratings: Ratings) -> None:
        """A Session whose first exchange was taken back and asked again, word for word."""
        retried: Event = {**user_message("u2", "Why?"), "sourceEventSeqs": [0, 1]}
        retried["surfaceOp"] = {"op": "replace", "start": 0, "end": 1}
        events = [user_message("u1", "Why?"), assistant_message("x1", "No."), retried, assistant_message("x2", "Yes.")]
        write_log(self.root, "regenerated", events, of=identity())
        ratings.rate("regenerated", identity(), item("x1", "negative"), item("x2"))

    def output(self, path: Path, plan: Plan, *, restart: bool = False, every: int = 2) -> Output:
        if plan.format == "jsonl":
            return JsonlOutput(path, plan.digest, restart=restart, checkpoint_sessions=every)
        return ParquetOutput(path, plan.digest, pairs=plan.pairs, restart=restart, group_records=every)

    def export(self, path: Path, plan: Plan, *, die_after: int | None = None, every: int = 2) -> Output:
        """An export in this process, which kills it after so many Sessions."""

        def on_session(done: int, total: int, skipped: Skipped | None) -> None:
            if done == die_after:
                os.kill(os.getpid(), signal.SIGKILL)

        output = self.output(path, plan, every=every)
        with closing(output):
            export(self.store, SessionLogs(self.root), plan, output, on_session=on_session)
        return output

    def lines(self, plan: Plan) -> list[Any]:
        self.export(self.home / "lines", plan)
        return [json.loads(line) for line in (self.home / "lines").read_bytes().splitlines()]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    opened = Home(tmp_path)
    with closing(opened.store):
        yield opened


def plan(format_: str = "jsonl", *, pairs: bool = False, filters: Filters | None = None) -> Plan:
    return Plan(format=format_, pairs=pairs, filters=filters or Filters(), store="s", sessions="r")


def answers_in(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["session"]["sessionId"], line["answer"]["messageId"]) for line in lines]


def test_records_come_by_session_id_then_by_log_position(home: Home) -> None:
    """Whatever the order of the ratings; who rated, with the note, where the command said so; nothing of others."""
    lines = home.lines(plan())
    assert answers_in(lines) == [
        ("regenerated", "x1"),
        ("regenerated", "x2"),
        ("s10", "a1"),
        ("s10", "a3"),
        ("s2", "a1"),
        ("s2", "a3"),
        ("unknown", "a1"),
        (ODD, "a1"),
        (ODD, "a3"),
    ]
    liked = lines[5]
    assert liked["session"] == {"sessionId": "s2", "createdAt": CREATED_AT, "cwd": "/w"}
    assert [turn["text"] for turn in liked["prompt"]] == ["Question 1?", "yes", "Question 2?", "yes", "Question 3?"]
    assert [liked["answer"][name] for name in ("rating", "note", "actor", "model", "answeredAt")] == [
        "positive",
        "ü",
        "ada",
        "example-1",
        CREATED_AT + 15,
    ]
    assert lines[4]["answer"]["actor"] is None


def test_every_record_is_what_the_schema_says(home: Home) -> None:
    """In both formats: the same members in the same order, and the same values."""
    for pairs in (False, True):
        of = PairRecord if pairs else AnswerRecord
        lines = home.lines(plan(pairs=pairs))
        typed = [msgspec.convert(line, of) for line in lines]
        assert [json.loads(msgspec.json.encode(record)) for record in typed] == lines
        home.export(home.home / "columns", plan("parquet", pairs=pairs))
        file = pq.ParquetFile(home.home / "columns")
        assert file.schema_arrow.equals(schema_of(of))
        assert file.schema_arrow.metadata[b"session_feedback.schema"].decode() == lines[0]["schema"]
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        rows = file.read().to_pylist()
        assert [json.dumps({"schema": lines[0]["schema"]} | row) for row in rows] == [json.dumps(x) for x in lines]


def test_what_is_left_out_is_counted_and_named(home: Home) -> None:
    """No log, a damaged log: skipped as a whole. Another life: absent. A message that no log holds: not exported."""
    tally = home.export(home.home / "out", plan()).checkpoint.tally
    assert (tally.sessions, tally.records, tally.stale, tally.unknown, tally.skipped) == (8, 9, 1, 1, 2)
    assert [(named.session_id, named.code) for named in tally.named] == [
        ("corrupt", "LogCorrupt"),
        ("gone", "session-not-found"),
    ]


def test_pairs_are_of_one_session_and_one_prompt(home: Home) -> None:
    """An exchange that was taken back and asked again gives one; two answers to two questions give none."""
    (pair,) = home.lines(plan(pairs=True))
    assert (pair["session"]["sessionId"], [turn["text"] for turn in pair["prompt"]]) == ("regenerated", ["Why?"])
    assert (pair["chosen"]["message"]["text"], pair["rejected"]["message"]["text"]) == ("Yes.", "No.")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(rating="negative", projects=("/other",)), [("s10", "a1")]),
        (Filters(projects=("",)), [(ODD, "a1"), (ODD, "a3")]),
        (Filters(since=CREATED_AT + 11, projects=("/w",)), [("s2", "a1")]),
        (Filters(until=CREATED_AT + 1), []),
        (Filters(models=("example/other",)), []),
    ],
)
def test_filters_apply_together(home: Home, filters: Filters, expected: list[tuple[str, str]]) -> None:
    """By rating, project, time and model; what is left is exported as ever."""
    assert answers_in(home.lines(plan(filters=filters))) == expected


def in_a_child(home: Home, work: Callable[[], object]) -> int | None:
    """The exit code of a process that does this with a store of its own."""
    home.store.close()

    def run() -> None:
        home.store = SqliteStore(home.home / "sidecar.sqlite3")
        work()

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    home.store = SqliteStore(home.home / "sidecar.sqlite3")
    return child.exitcode


def left_behind(out: Path) -> list[str]:
    """What lies beside an output, and itself."""
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name))


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(home: Home, format_: str, every: int) -> None:
    """SIGKILL after each Session in turn, all in one export: no record is lost, doubled or written otherwise."""
    killed, whole = home.home / "killed", home.home / "whole"
    home.export(whole, plan(format_), every=every)
    for die_after in range(1, 9):
        export = partial(home.export, killed, plan(format_), die_after=die_after, every=every)
        assert in_a_child(home, export) == -signal.SIGKILL
        assert not killed.exists()
    tally = home.export(killed, plan(format_), every=every).checkpoint.tally
    assert killed.read_bytes() == whole.read_bytes()
    assert (tally.records, tally.skipped, len(tally.named)) == (9, 2, 2)
    assert left_behind(killed) == ["killed"]


def die_at_step(nth: int) -> None:
    """From now on this process is killed where it would change the file system for the nth time."""
    steps = itertools.count(1)
    changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        creates = event == "open" and bool(arguments[2] & os.O_CREAT)
        if (event in changes or creates) and next(steps) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_killed_at_any_step_it_is_gone_on_with_or_complete(home: Home, format_: str) -> None:
    """SIGKILL before each change of a file: the output is the former one or the new one, and whoever exports again once
    it is the new one gets what there is then. Nothing else stays.
    """
    out, regenerated, aside = home.home / "out", home.root / "--w--" / "regenerated", home.home / "aside"
    whole, later = home.home / "whole", home.home / "later"
    home.export(whole, plan(format_), every=4)
    regenerated.rename(aside)
    home.export(later, plan(format_), every=4)
    aside.rename(regenerated)
    published = 0
    for nth in itertools.count(1):
        out.write_bytes(b"former")

        def killed_export(nth: int = nth) -> None:
            die_at_step(nth)
            home.export(out, plan(format_), every=4)

        if in_a_child(home, killed_export) == 0:
            break
        is_published = out.read_bytes() != b"former"
        if is_published:
            published += 1
            assert out.read_bytes() == whole.read_bytes(), nth
            regenerated.rename(aside)
        home.export(out, plan(format_), every=4)
        assert out.read_bytes() == (later if is_published else whole).read_bytes(), nth
        assert left_behind(out) == ["out"], nth
        if is_published:
            aside.rename(regenerated)
    assert 0 < published < nth - 5


def make_unreadable(log: Path) -> None:
    """Opening it fails, for everybody and for good: it is a socket now."""
    log.unlink()
    os.mknod(log, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_log_that_cannot_be_read_holds_up_no_other(home: Home, format_: str) -> None:
    """It is skipped, named and counted, also when an export goes on; once it is readable, it is exported."""
    out, whole, log = home.home / "out", home.home / "whole", home.root / "--w--" / "s2" / "session.jsonl"
    home.export(whole, plan(format_))
    content = log.read_bytes()
    make_unreadable(log)
    assert in_a_child(home, partial(home.export, out, plan(format_), die_after=6, every=1)) == -signal.SIGKILL
    tally = home.export(out, plan(format_), every=1).checkpoint.tally
    assert (tally.sessions, tally.records, tally.skipped, tally.unreadable) == (8, 7, 3, 1)
    assert [(named.session_id, named.code) for named in tally.named][-1] == ("s2", "LogUnreadable")
    log.unlink()
    log.write_bytes(content)
    assert home.export(out, plan(format_)).checkpoint.tally.unreadable == 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_root_that_is_out_of_reach_interrupts(home: Home, format_: str) -> None:
    """Taken away, or not mounted: no Session is left out for it, and the same export goes on when it is over."""
    out, whole = home.home / "out", home.home / "whole"
    home.export(whole, plan(format_))

    def unplug(done: int, total: int, skipped: Skipped | None) -> None:
        if done == 4:
            home.root.rename(home.home / "aside")

    output = home.output(out, plan(format_))
    with closing(output), pytest.raises(LogUnreadable):
        export(home.store, SessionLogs(home.root), plan(format_), output, on_session=unplug)
    home.root.mkdir()
    with pytest.raises(LogUnreadable, match="is it mounted"):
        home.export(out, plan(format_))
    home.root.rmdir()
    (home.home / "aside").rename(home.root)
    home.export(out, plan(format_))
    assert out.read_bytes() == whole.read_bytes()


def test_a_log_that_breaks_in_the_middle_interrupts(tmp_path: Path) -> None:
    """Half a Session is never exported: what was written of it does not count, and it is looked at anew."""
    home, out, whole = Home(tmp_path, filled=False), tmp_path / "out", tmp_path / "whole"
    ratings = Ratings(home.store)
    for session_id in ("before", "long"):
        log = write_log(home.root, session_id, conversation(3, "words " * 200_000), of=identity())
        ratings.rate(session_id, identity(), item("a1"), item("a3"))
    ratings.commit()
    sound = log.read_bytes()
    home.export(whole, plan())

    class Breaking(JsonlOutput):
        def write(self, record: Record) -> None:
            super().write(record)
            if record.session.session_id == "long":
                log.write_bytes(sound[: len(sound) // 2] + b"?" * (len(sound) // 2))

    output = Breaking(out, plan().digest, checkpoint_sessions=1)
    with closing(home.store):
        with closing(output), pytest.raises(LogUnreadable, match="while it was exported"):
            export(home.store, SessionLogs(home.root), plan(), output, on_session=lambda *_: None)
        log.write_bytes(sound)
        home.export(out, plan(), every=1)
    assert out.read_bytes() == whole.read_bytes()


def test_another_export_does_not_go_on_with_this_one(home: Home) -> None:
    """Other arguments are refused until --restart; two at one time are; what is no checkpoint is not overwritten."""
    out = home.home / "out"
    output = home.output(out, plan(), every=1)
    with closing(output):
        output.end_session("s")
    with pytest.raises(SettingsInvalid, match="--restart"):
        home.output(out, plan(pairs=True))
    with closing(home.output(out, plan(pairs=True), restart=True)) as other:
        assert other.checkpoint.last_session is None
    with locked(out), pytest.raises(SettingsInvalid, match="another process"), locked(out):
        pass
    assert not out.with_name("out.lock").exists()
    out.with_name("out.checkpoint").write_text("{}")
    with pytest.raises(SettingsInvalid, match="no checkpoint"):
        home.output(out, plan())


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_checkpoint_that_outlived_its_data_counts_for_nothing(home: Home, format_: str) -> None:
    """The next export begins anew, for good; so does one after --restart, whatever format left something there."""
    out, whole = home.home / "out", home.home / "whole"
    home.export(whole, plan(format_))
    left, unfinished = out.with_name("out.partial"), home.output(out, plan(format_), every=1)
    with closing(unfinished), pytest.raises(ZeroDivisionError):
        export(
            home.store, SessionLogs(home.root), plan(format_), unfinished, on_session=lambda done, *_: 1 // (done - 7)
        )
    assert out.with_name("out.checkpoint").exists()
    left.rename(home.home / "lost")
    with closing(home.output(out, plan(format_))) as fresh:
        assert fresh.checkpoint.last_session is None
    assert not out.with_name("out.checkpoint").exists()
    other = plan("parquet" if format_ == "jsonl" else "jsonl")
    with closing(home.output(out, other, restart=True)):
        assert left.is_dir() == (other.format == "parquet")
    home.export(out, plan(format_))
    assert out.read_bytes() == whole.read_bytes()


def test_an_export_of_nothing_is_an_empty_file(tmp_path: Path) -> None:
    """With its schema, in Parquet."""
    (tmp_path / "sessions").mkdir()
    empty = Home(tmp_path, filled=False)
    with closing(empty.store):
        for format_ in ("jsonl", "parquet"):
            empty.export(tmp_path / format_, plan(format_))
    assert (tmp_path / "jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "parquet").schema.equals(schema_of(AnswerRecord))


def test_a_large_session_spans_row_groups(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by a row group: it ends inside of a Session too, and nothing is lost over it."""
    monkeypatch.setattr("app.training.parquet._GROUP_WEIGHT", 300)
    monkeypatch.setattr("app.training.parquet._BATCH_WEIGHT", 100)
    home.export(home.home / "columns", plan("parquet"), every=5)
    file = pq.ParquetFile(home.home / "columns")
    assert file.num_row_groups > 2
    rows = [(row["session"]["sessionId"], row["answer"]["messageId"]) for row in file.read().to_pylist()]
    assert rows == answers_in(home.lines(plan()))
