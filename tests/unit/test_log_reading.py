"""Asking for a Session's log: what is read, what is remembered, when it is read anew (DESIGN, "Session logs")."""

import os
import shutil
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedback.errors import FeedbackError, LogAmbiguous, LogCorrupt, LogFormatUnsupported, LogUnreadable, RowInvalid
from feedback.model import SessionIdentity
from persistence.session_log import LogEntry, LogView, LogWriter, SessionLogs, events
from tests.unit.log_examples import CREATED_AT, CWD, SESSION, Compression, bomb, frame, open_turn, turn, write, writer

BOTH = pytest.mark.parametrize("compression", ["zstd", "none"])


def seen(logs: SessionLogs, session_id: str = SESSION) -> LogView:
    view = logs.inspect(session_id)
    assert view is not None
    return view


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes were read from files since the last call."""
    counted = [0]
    pread = os.pread

    def counting(descriptor: int, length: int, at: int) -> bytes:
        data = pread(descriptor, length, at)
        counted[0] += len(data)
        return data

    def take() -> int:
        count, counted[0] = counted[0], 0
        return count

    monkeypatch.setattr(os, "pread", counting)
    return take


@pytest.fixture
def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were fsynced, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    return paths


@BOTH
def test_a_log_says_its_identity_events_and_eligible_messages(tmp_path: Path, compression: Compression) -> None:
    write(tmp_path, 2, compression)
    view = seen(SessionLogs(tmp_path))
    assert view.identity == SessionIdentity(created_at=CREATED_AT, cwd=CWD)
    assert (view.events, view.torn, list(view.message_ids)) == (12, False, ["a1", "a2"])
    assert [view.eligible(message_id) for message_id in ("a1", "a2", "u1", "a", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]


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


@BOTH
def test_only_what_was_appended_is_read(
    tmp_path: Path, compression: Compression, bytes_read: Callable[[], int]
) -> None:
    """An unchanged log costs a stat; an extended one its extension, plus two fingerprints of 4 KiB."""
    path = write(tmp_path, 300, compression)
    logs = SessionLogs(tmp_path)
    first = seen(logs)
    bytes_read()
    assert logs.peek(SESSION) is first
    assert bytes_read() == 0
    size = path.stat().st_size
    with writer(tmp_path, compression) as log:
        bytes_read()
        log.append(turn(301))
        assert logs.peek(SESSION) is None
        view = seen(logs)
    assert bytes_read() <= 4 * 4096 + (path.stat().st_size - size)
    assert (view.events, view.eligible("a301")) == (301 * 6, True)


def test_a_view_does_not_change_when_the_log_grows(tmp_path: Path) -> None:
    write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    before = seen(logs)
    with writer(tmp_path) as log:
        log.append(turn(2))
    assert seen(logs).eligible("a2")
    assert not before.eligible("a2")
    assert list(before.message_ids) == ["a1"]


def _same_size(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"a2"', b'"b2"'))


def _shorter(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))


def _larger(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"a2"', b'"another"'))


def _moved_over(path: Path) -> None:
    other = path.with_name("new")
    other.write_bytes(path.read_bytes().replace(b'"a2"', b'"b2"'))
    other.rename(path)


@pytest.mark.parametrize("rewrite", [_same_size, _shorter, _larger, _moved_over])
@pytest.mark.parametrize("ask", [SessionLogs.inspect, SessionLogs.make_durable])
def test_a_log_that_was_rewritten_is_read_anew(
    tmp_path: Path, rewrite: Callable[[Path], None], ask: Callable[[SessionLogs, str], LogView | None]
) -> None:
    """Cut and regrown to the same size, cut short, made longer, replaced: the index never outlives the bytes."""
    path = write(tmp_path, 2, "none")
    logs = SessionLogs(tmp_path)
    assert seen(logs).eligible("a2")
    rewrite(path)
    view = ask(logs, SESSION)
    assert view is not None
    assert not view.eligible("a2")
    assert view.eligible("a1")


def test_another_sessions_log_in_its_place_is_refused(tmp_path: Path) -> None:
    path, other = write(tmp_path, 1), write(tmp_path, 1, session_id="other")
    logs = SessionLogs(tmp_path)
    seen(logs)
    other.rename(path)
    with pytest.raises(LogCorrupt, match="not this place"):
        logs.inspect(SESSION)


@BOTH
def test_a_torn_tail_is_left_out_until_its_owner_repairs_it(tmp_path: Path, compression: Compression) -> None:
    """The same reader sees the log before the tear, with it, and after the repair."""
    path = write(tmp_path, 1, compression)
    start = path.stat().st_size
    logs = SessionLogs(tmp_path)
    seen(logs)
    with writer(tmp_path, compression) as log:
        log.append(open_turn(2))
    path.write_bytes(path.read_bytes()[: start + 40])
    torn = seen(logs)
    assert (torn.torn, list(torn.message_ids)) == (True, ["a1"])
    with writer(tmp_path, compression) as log:
        log.append(turn(3))
    assert (seen(logs).torn, list(seen(logs).message_ids)) == (False, ["a1", "a3"])


def test_a_message_from_a_torn_frame_counts_while_the_frame_is_there(tmp_path: Path) -> None:
    """And no longer than that: the owner may repair the log by cutting it off."""
    path = write(tmp_path, 1)
    sound = path.read_bytes()
    with writer(tmp_path) as log:
        log.append([*open_turn(2), events.assistant_message("late", "x")])
    path.write_bytes(path.read_bytes()[:-4])
    logs = SessionLogs(tmp_path)
    torn = seen(logs)
    assert (torn.eligible("late"), torn.torn, torn.events) == (True, True, 10)
    path.write_bytes(sound)
    assert not seen(logs).eligible("late")


def test_a_whole_frame_behind_a_torn_one_is_corruption(tmp_path: Path) -> None:
    """A bit that makes a middle frame look longer than the file must not hide committed turns."""
    path = write(tmp_path, 3)
    data = bytearray(path.read_bytes())
    second = data.index(b"\x28\xb5\x2f\xfd", 4)
    data[second + 8] |= 0x80  # the highest bit of the block's size
    path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="past the end of the file"):
        SessionLogs(tmp_path).inspect(SESSION)


@pytest.mark.parametrize("tail", [b"\0" * 65536, b'{"type":"turn/start","se', b"\0\0\0\n\n{\n"])
def test_a_raw_log_ending_in_rubbish_is_torn_there(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path, 1, "none")
    path.write_bytes(path.read_bytes() + tail)
    view = seen(SessionLogs(tmp_path))
    assert (view.torn, view.events, list(view.message_ids)) == (True, 6, ["a1"])


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


def test_durable_means_bytes_and_names_are_synced_once(tmp_path: Path, fsyncs: list[str]) -> None:
    """The file once per revision, its directories once per file; asking again costs nothing."""
    path = write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    fsyncs.clear()
    for _ in range(3):
        assert logs.make_durable(SESSION) is not None
    assert fsyncs == [str(path.parent), str(path.parent.parent), str(tmp_path), str(path)]
    with writer(tmp_path) as log:
        log.append(turn(2))
        fsyncs.clear()
        view = logs.make_durable(SESSION)
    assert view is not None
    assert view.eligible("a2")
    assert fsyncs == [str(path)]


def test_a_failed_fsync_is_not_forgotten_nor_believed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is retryable, nothing read before it counts any more, and the next try reads and syncs all again."""
    write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    seen(logs)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for _ in range(2):
            with pytest.raises(LogUnreadable, match="fsync"):
                logs.make_durable(SESSION)
    assert logs.peek(SESSION) is None
    assert logs.make_durable(SESSION) is not None


def test_a_log_replaced_while_it_is_synced_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made durable must be what the path names afterwards."""
    path = write(tmp_path, 2, "none")
    fsync = os.fsync

    def replacing(descriptor: int) -> None:
        fsync(descriptor)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            monkeypatch.setattr(os, "fsync", fsync)
            _moved_over(path)

    monkeypatch.setattr(os, "fsync", replacing)
    view = SessionLogs(tmp_path).make_durable(SESSION)
    assert view is not None
    assert not view.eligible("a2")
    assert view.eligible("b2")


def test_a_log_that_keeps_changing_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 1)
    pread, count = os.pread, [0]

    def changing(descriptor: int, length: int, at: int) -> bytes:
        count[0] += 1
        os.utime(path, ns=(count[0], count[0]))
        return pread(descriptor, length, at)

    logs = SessionLogs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", changing)
        with pytest.raises(LogUnreadable, match="keeps changing"):
            logs.inspect(SESSION)
    assert seen(logs).eligible("a1")


@pytest.mark.parametrize("torn", [False, True])
def test_a_frame_that_expands_without_end_stops_at_the_cap(tmp_path: Path, torn: bool) -> None:
    """A gigabyte of one row in 32 KB of file: refused after the cap, in bounded memory."""
    path = write(tmp_path, 1)
    with path.open("ab") as log:
        log.write(bomb(1 << 30)[: -1 if torn else None])
    logs = SessionLogs(tmp_path, max_row_bytes=1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(RowInvalid, match="larger than 1048576 bytes"):
            logs.inspect(SESSION)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@BOTH
def test_a_header_past_the_cap_is_refused(tmp_path: Path, compression: Compression) -> None:
    write(tmp_path, 1, compression)
    with pytest.raises(RowInvalid, match="header"):
        SessionLogs(tmp_path, max_row_bytes=50).inspect(SESSION)


def test_more_message_ids_than_the_index_may_hold_are_refused(tmp_path: Path) -> None:
    """One log cannot make the reader remember without bound."""
    with writer(tmp_path) as log:
        log.append([events.assistant_message(f"{at:0100}", "x") for at in range(100)])
    with pytest.raises(RowInvalid, match="index"):
        SessionLogs(tmp_path, index_bytes=4096).inspect(SESSION)


def test_the_index_forgets_the_longest_unused(tmp_path: Path) -> None:
    """It stays within its bytes; what was forgotten is read again."""
    for at in range(20):
        write(tmp_path, 1, session_id=f"s{at}")
    logs = SessionLogs(tmp_path, index_bytes=10 * 1024)
    for at in range(20):
        seen(logs, f"s{at}")
    remembered = [at for at in range(20) if logs.peek(f"s{at}") is not None]
    assert remembered == list(range(20))[-len(remembered) :]
    assert 2 <= len(remembered) <= 5
    assert seen(logs, "s0").eligible("a1")


def test_an_append_that_the_reader_meets_half_way_never_fails(tmp_path: Path) -> None:
    """One thread appends, others read: events never shrink, what is seen is a prefix of what is written."""
    logs = SessionLogs(tmp_path)

    def read_along() -> None:
        last = 0
        while last < 200 * 6:
            view = logs.inspect(SESSION)
            events_seen = 0 if view is None else view.events
            assert events_seen >= last
            last = events_seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_along) for _ in range(2)]
        write(tmp_path, 200)
        for reader in readers:
            reader.result(timeout=60)


def test_many_sessions_are_read_from_many_threads(tmp_path: Path) -> None:
    """Each answer is its own Session's, while the index keeps forgetting."""
    for at in range(12):
        write(tmp_path, at + 1, session_id=f"s{at}")
    logs = SessionLogs(tmp_path, index_bytes=8 * 1024)

    def ask(at: int) -> bool:
        return seen(logs, f"s{at % 12}").events == (at % 12 + 1) * 6

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(300)))


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


@pytest.mark.parametrize("shape", ["magic", "row", "header"])
def test_a_failure_names_the_session_and_the_file(tmp_path: Path, shape: str) -> None:
    path = write(tmp_path, 1)
    data = {
        "magic": b"rubbish!",
        "row": path.read_bytes() + frame(b"{}\n"),
        "header": frame(b"two\nlines\n"),
    }[shape]
    path.write_bytes(data)
    for ask in (SessionLogs.inspect, SessionLogs.make_durable, lambda logs, sid: list(logs.messages(sid))):
        with pytest.raises(LogCorrupt) as caught:
            ask(SessionLogs(tmp_path), SESSION)
        assert isinstance(caught.value, FeedbackError)
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
