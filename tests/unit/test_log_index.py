"""The index of logs that were read: what was not used lately lies in few bytes, and answers as before."""

import os
from pathlib import Path

import pytest

from feedback.model import SessionIdentity
from persistence.session_log import LogView, LogWriter, Revision, SessionLogs, events, lru
from persistence.session_log.catalog import Location
from persistence.session_log.compact import compacted, restored
from persistence.session_log.index import Entry, Fingerprint, LogState, MessageIds
from persistence.session_log.layout import LogName
from persistence.session_log.lru import LogIndex
from persistence.session_log.reader import Progress
from tests.unit.log_examples import open_turn, seen, turn, write, writer

ODD = "lone-\ud800"


@pytest.fixture(autouse=True)
def _one_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the entry that was used last rest."""
    monkeypatch.setattr(lru, "MOST_READY", 1)


def _sessions(root: Path) -> list[str]:
    """Logs of all kinds: raw, torn with a message in the torn frame, of an odd id, without cwd, of many or odd ids."""
    write(root, 3, session_id="zstd")
    write(root, 3, "none", session_id="raw")
    write(root, 1, session_id="../\U0001f680")
    torn = write(root, 1, session_id="torn")
    with writer(root, session_id="torn") as log:
        log.append([*open_turn(2), events.assistant_message("late", "x")])
    torn.write_bytes(torn.read_bytes()[:-4])
    with LogWriter(root, "nowhere", created_at=0) as log:
        log.append(turn(1))
    with writer(root, session_id="many") as log:
        log.append([events.assistant_message(f"a{number}", "x") for number in range(200)])
    with writer(root, session_id="odd") as log:
        log.append([events.assistant_message(ODD, "x")])
    for path in root.glob("*/*/session.jsonl*"):
        os.utime(path, ns=(0, 0))  # long ago
    return ["zstd", "raw", "../\U0001f680", "torn", "nowhere", "many", "odd"]


def _essence(view: LogView | None) -> object:
    assert view is not None
    eligible = [message_id for message_id in ("a1", "a3", "late", ODD) if view.eligible(message_id)]
    return view.identity, view.revision, view.events, view.torn, list(view.message_ids), eligible


def test_a_log_that_rests_is_answered_for_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same identity, events and messages, durable still; none of its bytes are read or synced again."""
    sessions, logs = _sessions(tmp_path), SessionLogs(tmp_path)
    before = [_essence(logs.make_durable(session)) for session in sessions]

    def refuse(*_arguments: object) -> bytes:
        raise AssertionError("read or synced again")

    monkeypatch.setattr(os, "pread", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    for ask in (SessionLogs.peek, SessionLogs.peek_durable, SessionLogs.make_durable, SessionLogs.inspect):
        assert [_essence(ask(logs, session)) for session in sessions] == before


def test_what_was_not_durable_before_it_rested_is_not_afterwards(tmp_path: Path) -> None:
    sessions, logs = _sessions(tmp_path), SessionLogs(tmp_path)
    for session in sessions:
        seen(logs, session)
    assert [logs.peek_durable(session) for session in sessions] == [None] * len(sessions)


def test_a_log_that_grew_while_it_rested_is_read_from_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 100, "none")
    write(tmp_path, 1, session_id="other")
    logs = SessionLogs(tmp_path)
    seen(logs), seen(logs, "other")
    size, pread, read = path.stat().st_size, os.pread, [0]

    def counting(descriptor: int, length: int, at: int) -> bytes:
        data = pread(descriptor, length, at)
        read[0] += len(data)
        return data

    with writer(tmp_path, "none") as log:
        log.append(turn(101))
    monkeypatch.setattr(os, "pread", counting)
    view = seen(logs)
    assert (view.events, view.eligible("a100"), view.eligible("a101")) == (606, True, True)
    assert read[0] <= 4 * 4096 + path.stat().st_size - size


def test_logs_at_rest_take_little_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many more of them are remembered in the same memory."""
    for number in range(40):
        write(tmp_path, 1, session_id=f"s{number}")

    def remembered() -> int:
        logs = SessionLogs(tmp_path, index_bytes=24 * 1024)
        for number in range(40):
            seen(logs, f"s{number}")
        return sum(logs.peek(f"s{number}") is not None for number in reversed(range(40)))

    assert remembered() == 40
    monkeypatch.setattr(lru, "MOST_READY", 40)
    assert 5 <= remembered() <= 14


def test_an_entry_in_use_stays_as_it_is() -> None:
    """Nobody takes bytes of it while another thread changes it."""
    entry = _entry()
    assert compacted("s", entry) is not None
    with entry.lock:
        assert compacted("s", entry) is None
    assert compacted("s", entry) is not None


def test_an_entry_comes_back_as_it_went() -> None:
    """Unless its log was read half only: then what is known of it may not be the file's."""
    entry = _entry()
    data = compacted("s", entry)
    assert data is not None
    back = restored("s", data, "/root", 1 << 20)
    assert back.state is not None
    assert entry.state is not None
    for name in LogState.__struct_fields__:
        if name != "appended":
            assert getattr(back.state, name) == getattr(entry.state, name), name
    assert back.state.appended.seqs == entry.state.appended.seqs
    assert _essence(back.view) == _essence(entry.view)
    entry.state.revision = Revision(1, 2, 4, 4, 5)
    assert compacted("s", entry) is None


def _entry() -> Entry:
    appended, recovered = MessageIds(1 << 20), MessageIds(1 << 20)
    appended.add({"a1": 3, "a2": 9})
    recovered.add({"late": 10})
    state = LogState(
        location=Location("/root", "project", "~0053", LogName(2, compressed=True), 77),
        version=2,
        identity=SessionIdentity(created_at=5, cwd="/x"),
        progress=Progress(1000, 10),
        revision=Revision(1, 2, 3, 4, 5),
        appended=appended,
        fingerprint=Fingerprint(b"h" * 16, b"t" * 16),
        durable=Revision(1, 2, 3, 4, 5),
        names_durable=True,
    )
    view = LogView(
        identity=state.identity, revision=state.revision, events=11, torn=True, _appended=appended, _recovered=recovered
    )
    return Entry(state=state, view=view)


def test_the_index_is_empty_again_when_nothing_could_be_read(tmp_path: Path) -> None:
    """A Session without a log leaves no trace, whatever rests."""
    index = LogIndex(tmp_path, 1 << 20)
    for session in ("a", "b", "a"):
        with index.hold(session):
            pass
        assert index.peek(session) is None
