"""Summaries of Sessions: what they show, what a refresh costs, and what becomes of them when logs change."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from feedback.errors import InvalidRequest, LogUnreadable, StoreForeign
from persistence.session_log import LogWriter
from persistence.session_log.events import Event, empty_usage, exchange, user_message
from persistence.summaries import Count, SessionSummaries, SessionSummary
from tests.unit.log_examples import CREATED_AT, CWD, Compression, timed, turn, write, writer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty root."""
    (tmp_path / "sessions").mkdir()
    return tmp_path / "sessions"


@pytest.fixture
def summaries(root: Path, tmp_path: Path) -> Iterator[SessionSummaries]:
    """Its summaries, kept in a file."""
    with closing(SessionSummaries(root, tmp_path / "summaries.sqlite3")) as opened:
        yield opened


def settle(root: Path) -> None:
    """Logs as if they had been left alone for a while: what was just written is looked at again by the next refresh."""
    for log in root.rglob("session*.jsonl*"):
        os.utime(log, ns=(1_700_000_000 * 10**9, 1_700_000_000 * 10**9))


def titled(title: str) -> Event:
    return {"type": "session/title", "data": {"title": title, "messageSeqs": [], "source": {"kind": "user"}}}


def seen(summaries: SessionSummaries, session_id: str) -> SessionSummary:
    found = summaries.get(session_id)
    assert found is not None
    return found


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_summary_says_what_a_list_shows(root: Path, summaries: SessionSummaries, compression: Compression) -> None:
    """Title (the last), prompt (a person's first), times, answers that can be rated, the last answer's model, size."""
    injected = user_message("ctx", "AGENTS.md says")
    injected["data"] = {**injected["data"], "source": {"kind": "plugin", "plugin": "x"}}  # type: ignore[dict-item]  # ours
    with writer(root, compression, "s") as log:
        log.append(timed([injected, *exchange(1, "Why? " * 200, "Because.", user_id="u", assistant_id="a")]))
        log.append([{**event, "time": CREATED_AT + 500} for event in (titled("First"), empty_usage("e"))])
        log.append([{**titled("A title \ud800"), "time": CREATED_AT + 900}])
    summaries.refresh()
    assert seen(summaries, "s") == SessionSummary(
        session_id="s",
        created_at=CREATED_AT,
        updated_at=CREATED_AT + 500,
        cwd=CWD,
        title="A title \ufffd",
        prompt=("Why? " * 200)[:400],
        answers=1,
        provider="example",
        model="example-1",
        size=log.path.stat().st_size,
    )


def test_only_what_changed_is_read_again(root: Path, summaries: SessionSummaries) -> None:
    """A second look reads no log, a log that grew from where it was, one that was put over it from the beginning."""
    for session_id in ("one", "two", "three"):
        write(root, 40, "none", session_id)
    settle(root)
    assert summaries.refresh() == (3, 3, 0)
    assert summaries.refresh() == (3, 0, 0)
    with writer(root, "none", "two") as log:
        log.append(turn(41))
    grown = log.path.read_bytes()
    spoilt = bytearray(grown)
    spoilt[len(grown) // 2] = 0  # read from the beginning, the log would be corrupt now
    log.path.write_bytes(spoilt)
    assert summaries.refresh() == (3, 1, 0)
    assert (seen(summaries, "two").answers, seen(summaries, "two").error) == (41, None)
    other = log.path.with_name("other")
    other.write_bytes(spoilt)
    other.replace(log.path)
    assert summaries.refresh() == (3, 1, 0)
    assert seen(summaries, "two").error is not None


def test_what_is_gone_leaves_the_list(root: Path, summaries: SessionSummaries, tmp_path: Path) -> None:
    """A Session, a whole project; and a new generation of a log takes the place of the old one."""
    write(root, 1, "zstd", "stays")
    shutil.rmtree(write(root, 1, "zstd", "goes").parent)
    with LogWriter(root, "elsewhere", created_at=CREATED_AT, cwd="/x") as log:
        log.append(turn(1))
    summaries.refresh()
    shutil.rmtree(log.path.parent.parent)
    assert summaries.refresh().removed == 1
    assert [found.session_id for found in summaries.search().sessions] == ["stays"]
    shutil.rmtree(root)
    with pytest.raises(LogUnreadable):
        summaries.refresh()
    assert summaries.search().total == 1


def test_search_by_words_project_and_model(root: Path, summaries: SessionSummaries) -> None:
    """Every word, in any case and any of id, project, title, prompt; pages go on where the last one ended."""
    for number in range(25):
        cwd = "/home/Straße" if number % 5 == 0 else None
        with LogWriter(root, f"s{number:02}", created_at=CREATED_AT + number, cwd=cwd) as log:
            log.append(timed(exchange(1, f"Question {number % 3}%_", "yes", user_id="u", assistant_id="a")))
            log.append([{**titled("Odd" if number % 2 else "Even"), "time": 1}])
    summaries.refresh()
    assert summaries.search("STRASSE").total == 5
    assert summaries.search("question odd 1%_").total == 4
    assert summaries.search("%").total == 25
    assert summaries.search("s07").sessions[0].session_id == "s07"
    assert (summaries.search(project="/home/Straße").total, summaries.search(project="").total) == (5, 20)
    assert (summaries.search(model="example-1").total, summaries.search(model="other").total) == (25, 0)
    assert summaries.search("even", among=["s01", "s02", "s04"], without=["s02"]).total == 1
    assert summaries.projects() == [Count(None, 20), Count("/home/Straße", 5)]
    assert summaries.models() == [Count("example-1", 25)]
    pages = [summaries.search(limit=10)]
    while pages[-1].next is not None:
        pages.append(summaries.search(limit=10, after=pages[-1].next))
    assert [len(page.sessions) for page in pages] == [10, 10, 5]
    assert {page.total for page in pages} == {25}
    assert sorted(found.session_id for page in pages for found in page.sessions) == [f"s{n:02}" for n in range(25)]
    with pytest.raises(InvalidRequest):
        summaries.search(after="page 2")


def test_broken_logs_are_listed_with_the_reason(root: Path, summaries: SessionSummaries) -> None:
    """Corrupt, without a header, in both encodings: each is one entry, none hides another, none raises."""
    write(root, 2, "none", "whole")
    corrupt = write(root, 2, "none", "corrupt")
    corrupt.write_bytes(corrupt.read_bytes().replace(b'"seq":8', b'"seq":9'))
    write(root, 1, "none", "headless").write_bytes(b"{")
    write(root, 1, "none", "both").with_name("session.jsonl.zstd").touch()
    summaries.refresh()
    assert {found.session_id: found.error and found.error.code for found in summaries.search().sessions} == {
        "whole": None,
        "corrupt": "LogCorrupt",
        "headless": "session-not-found",
        "both": "LogAmbiguous",
    }
    assert (seen(summaries, "corrupt").cwd, seen(summaries, "corrupt").prompt) == (CWD, "a question")


def test_a_torn_tail_is_shown_and_read_again(root: Path, summaries: SessionSummaries) -> None:
    """What is recovered from a torn frame counts now, and is counted once when its owner has repaired it."""
    path = write(root, 2)
    path.write_bytes(path.read_bytes()[:-1])
    summaries.refresh()
    assert seen(summaries, "session-1").answers == 2
    with writer(root) as log:
        log.append(turn(3))
    summaries.refresh()
    assert seen(summaries, "session-1").answers == 3


def test_summaries_outlive_the_process(root: Path, tmp_path: Path) -> None:
    """The next one reads no log that did not change; another version's is made anew; a foreign file is left alone."""
    path = tmp_path / "summaries.sqlite3"
    write(root, 1)
    settle(root)
    for read in (1, 0):
        with closing(SessionSummaries(root, path)) as summaries:
            assert summaries.refresh().read == read
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with closing(SessionSummaries(root, path)) as summaries:
        assert summaries.refresh().read == 1
    with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    (tmp_path / "text").write_text("no database" * 100)
    for name in ("foreign", "text"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StoreForeign):
            SessionSummaries(root, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_fresh_enough_list_is_not_looked_at_again(root: Path, summaries: SessionSummaries) -> None:
    """`max_age` spares the stats; searches do not wait for a refresh."""
    write(root, 1)
    assert summaries.refresh(max_age=3600) == (1, 1, 0)
    write(root, 1, "zstd", "new")
    assert summaries.refresh(max_age=3600) == (1, 1, 0)
    with summaries._scanning:
        found: list[int] = []
        searching = threading.Thread(target=lambda: found.append(summaries.search().total))
        searching.start()
        searching.join(timeout=20)
        assert found == [1]
    assert summaries.refresh().sessions == 2
