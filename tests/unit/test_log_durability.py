"""Logs put on stable storage, and logs that change while they are read (CONTRACT, rule 5 of put)."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedback.errors import LogUnreadable
from persistence.session_log import SessionLogs
from tests.unit.log_examples import (
    SESSION,
    moved_over,
    seen,
    turn,
    write,
    writer,
)


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


def test_a_durable_log_that_did_not_change_costs_two_stats(
    tmp_path: Path, fsyncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot way of a barrier: one stat of the log and one of its directory, nothing opened, read or synced."""
    path = write(tmp_path, 1)
    _left_alone(path)
    logs = SessionLogs(tmp_path)
    durable = logs.make_durable(SESSION)
    fsyncs.clear()
    asked: list[str] = []
    for name in ("stat", "lstat", "open", "scandir", "pread", "fstat"):
        _record(monkeypatch, name, asked)
    assert durable is not None
    assert logs.peek_durable(SESSION) is durable
    assert (asked, fsyncs) == (["lstat", "stat"], [])


def test_what_was_read_but_not_synced_is_not_durable(tmp_path: Path) -> None:
    """Nor is what nobody read, nor a log so young that a rewrite might not show in its times."""
    path = write(tmp_path, 1)
    logs = SessionLogs(tmp_path)
    assert logs.peek_durable(SESSION) is None
    os.utime(path, ns=(0, time.time_ns() + 10**12))
    assert logs.make_durable(SESSION) is not None
    assert logs.peek_durable(SESSION) is None
    _left_alone(path)
    seen(logs)
    assert logs.peek(SESSION) is not None
    assert logs.peek_durable(SESSION) is None


def _grown(path: Path) -> None:
    with writer(path.parents[2], "none") as log:
        log.append(turn(3))


def _next_generation(path: Path) -> None:
    path.with_name("session.v1.jsonl").write_bytes(path.read_bytes())


@pytest.mark.parametrize("change", [_grown, _next_generation, moved_over, Path.unlink])
def test_a_log_that_changed_is_not_durable(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Grown, migrated, replaced, gone: None, whatever is known of it."""
    path = write(tmp_path, 2, "none")
    _left_alone(path)
    logs = SessionLogs(tmp_path)
    assert logs.make_durable(SESSION) is logs.peek_durable(SESSION) is not None
    change(path)
    assert logs.peek_durable(SESSION) is None


def _left_alone(path: Path) -> None:
    """Long enough that a change of the log must show in its times."""
    os.utime(path, ns=(0, 0))


def _record(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    real = getattr(os, name)

    def recording(*arguments: object, **options: object) -> object:
        calls.append(name)
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, recording)


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
    assert logs.peek(SESSION) is logs.peek_durable(SESSION) is None
    assert logs.make_durable(SESSION) is not None


def test_a_log_replaced_while_it_is_synced_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made durable must be what the path names afterwards."""
    path = write(tmp_path, 2, "none")
    fsync = os.fsync

    def replacing(descriptor: int) -> None:
        fsync(descriptor)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            monkeypatch.setattr(os, "fsync", fsync)
            moved_over(path)

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
