"""Finding a Session's log and listing it: by id alone, one file counts or none (FORMATS sections 1, 2, 9)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from feedback.errors import LogAmbiguous, LogCorrupt, LogFormatUnsupported, LogUnreadable, RowInvalid
from persistence.session_log import LogEntry, LogWriter, SessionLogs, events
from tests.unit.log_examples import (
    SESSION,
    Compression,
    frame,
    seen,
    turn,
    write,
    writer,
)

BOTH = pytest.mark.parametrize("compression", ["zstd", "none"])


@pytest.mark.parametrize("session_id", ["", "absent", ".", "..", "../x", "/etc/passwd", "x" * 300, "nul\0", "\ud800"])
def test_an_id_without_a_log_is_not_there(tmp_path: Path, session_id: str) -> None:
    """Whatever the id holds: no such Session, before and after the root exists."""
    logs = SessionLogs(tmp_path / "root")
    for _ in range(2):
        assert not logs.exists(session_id)
        assert logs.inspect(session_id) is None
        assert logs.peek(session_id) is None
        assert logs.make_durable(session_id) is None
        assert list(logs.messages(session_id)) == []
        write(tmp_path / "root", 1)


@pytest.mark.parametrize("name", ["session.v2.jsonl.zstd", "session.v10.jsonl.zstd"])
def test_a_higher_generation_takes_over_at_once(tmp_path: Path, name: str) -> None:
    """Even when nothing of it can be read: lower generations are never fallen back to."""
    path = write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    seen(logs)
    path.with_name(name).write_bytes(b"")
    assert logs.peek(SESSION) is None
    with pytest.raises(LogCorrupt if "v2" in name else LogFormatUnsupported):
        logs.make_durable(SESSION)


def test_one_id_in_two_projects_is_ambiguous(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    shutil.copytree(path.parent, tmp_path / "--elsewhere--" / path.parent.name)
    with pytest.raises(LogAmbiguous, match="--elsewhere--"):
        logs.inspect(SESSION)


def test_one_session_in_both_encodings_is_ambiguous(tmp_path: Path) -> None:
    write(tmp_path, 1).with_name("session.jsonl").touch()
    with pytest.raises(LogAmbiguous):
        SessionLogs(tmp_path).exists(SESSION)


def test_a_new_project_is_found(tmp_path: Path) -> None:
    """The list of project directories is remembered, and looked at again when it lacks the answer."""
    write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    seen(logs)
    with LogWriter(tmp_path, "new", created_at=1, cwd="/a/new/place") as log:
        log.append(turn(1))
    assert seen(logs, "new").eligible("a1")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe in the log's place does not make the reader wait."""
    path = write(tmp_path, 1)
    path.unlink()
    make(path)
    with pytest.raises(LogCorrupt, match="regular"):
        SessionLogs(tmp_path).inspect(SESSION)


def test_linked_directories_are_not_followed_a_linked_log_is(tmp_path: Path) -> None:
    path = write(tmp_path / "root", 1)
    logs = SessionLogs(tmp_path / "root")
    kept = path.rename(tmp_path / "kept")
    path.symlink_to(kept)
    assert seen(logs).eligible("a1")
    moved = path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(moved)
    assert logs.inspect(SESSION) is None


def test_the_catalog_is_paged_in_a_stable_order(tmp_path: Path) -> None:
    """By project directory, then Session directory; what is no Session's directory is passed over."""
    for session_id in ("b", "a", "../x", "\U0001f680"):
        write(tmp_path, 1, session_id=session_id)
    with LogWriter(tmp_path, "z", created_at=1) as log:
        log.append(turn(1))
    (tmp_path / "--home-dev-project--" / "~0074arget").mkdir()
    (tmp_path / "--home-dev-project--" / "empty").mkdir()
    (tmp_path / "file").touch()
    logs = SessionLogs(tmp_path)
    page: list[LogEntry] = logs.sessions(limit=2)
    pages = [page]
    while page := logs.sessions(after=page[-1].cursor, limit=2):
        pages.append(page)
    found = [entry.session_id for page in pages for entry in page]
    assert found == ["../x", "a", "b", "\U0001f680", "z"]
    assert all(entry.path.exists() for page in pages for entry in page)
    assert SessionLogs(tmp_path / "nowhere").sessions(limit=1) == []


@BOTH
def test_messages_are_listed_for_people_to_choose_from(tmp_path: Path, compression: Compression) -> None:
    """Users' and assistants' messages in order, their beginnings, and which of them may be rated."""
    with writer(tmp_path, compression) as log:
        log.append(turn(1, "yes " * 100))
        log.append([events.empty_usage("empty"), events.assistant_message("new", "x", replaces=(3, 3))])
    listed = [
        (message.message_id, message.role, message.text, message.eligible)
        for message in SessionLogs(tmp_path).messages(SESSION)
    ]
    assert listed == [
        ("u1", "user", "a question", False),
        ("a1", "assistant", ("yes " * 100)[:200], True),
        ("empty", "assistant", "", False),
        ("new", "assistant", "x", False),
    ]


def test_listing_messages_may_be_broken_off(tmp_path: Path) -> None:
    """The file is closed then."""
    write(tmp_path, 3)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count is all that matters
    messages = SessionLogs(tmp_path).messages(SESSION)
    next(messages)
    messages.close()  # type: ignore[attr-defined]  # a generator
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("shape", ["magic", "row", "header", "message"])
def test_a_failure_names_the_session_and_the_file(tmp_path: Path, shape: str) -> None:
    path = write(tmp_path, 1)
    data = {
        "magic": b"rubbish!",
        "row": path.read_bytes() + frame(b"{}\n"),
        "header": frame(b"two\nlines\n"),
        "message": path.read_bytes() + frame(b'{"type":"assistant/message","seq":6,"data":{}}\n'),
    }[shape]
    path.write_bytes(data)
    for ask in (SessionLogs.inspect, SessionLogs.make_durable, lambda logs, sid: list(logs.messages(sid))):
        with pytest.raises(RowInvalid if shape == "message" else LogCorrupt) as caught:
            ask(SessionLogs(tmp_path), SESSION)
        assert (caught.value.session_id, caught.value.path) == (SESSION, str(path))


def test_an_unreadable_directory_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of descriptors says nothing about the Session."""
    write(tmp_path, 1)
    logs = SessionLogs(tmp_path)

    def fail(*_args: object, **_kwargs: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(LogUnreadable, match="Too many"):
        logs.inspect(SESSION)


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_a_root_that_is_taken_away_says_nothing_about_its_sessions(tmp_path: Path, left: str) -> None:
    """A file system that is not mounted for a while: every Session is unreadable, none is unknown."""
    root, away = tmp_path / "root", tmp_path / "away"
    write(root, 1)
    logs = SessionLogs(root)
    view = seen(logs)
    root.rename(away)
    if left != "nothing":
        root.mkdir()
    for session_id in (SESSION, "never seen"):
        with pytest.raises(LogUnreadable):
            logs.make_durable(session_id)
    if left != "nothing":
        root.rmdir()
    away.rename(root)
    assert seen(logs).identity == view.identity
    assert logs.inspect("never seen") is None


def test_a_root_that_was_emptied_or_never_was_holds_no_session(tmp_path: Path) -> None:
    root = tmp_path / "root"
    logs = SessionLogs(root)
    assert logs.inspect(SESSION) is None
    write(root, 1)
    assert logs.inspect(SESSION) is not None
    for project in root.iterdir():
        shutil.rmtree(project)
    assert logs.inspect(SESSION) is None
