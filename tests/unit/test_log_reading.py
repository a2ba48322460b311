"""Reading a Session's log: what is read, what is remembered, when it is read anew (DESIGN, "Session logs")."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from feedback.errors import LogCorrupt, RowInvalid
from feedback.model import SessionIdentity
from persistence.session_log import LogView, SessionLogs, events
from tests.unit.log_examples import (
    CREATED_AT,
    CWD,
    SESSION,
    Compression,
    bomb,
    moved_over,
    open_turn,
    seen,
    turn,
    write,
    writer,
)

BOTH = pytest.mark.parametrize("compression", ["zstd", "none"])


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


@pytest.mark.parametrize("rewrite", [_same_size, _shorter, _larger, moved_over])
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
