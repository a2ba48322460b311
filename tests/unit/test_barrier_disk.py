"""The barrier on real logs whose disk may hang: the caller's thread, a worker's whole loop, never waits for it."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barrier.logs import LogBarrier
from barrier.rules import Flushed, FlushNeeded, Need
from feedback.errors import FlushFailed, LogUnreadable
from feedback.flushing import LiveOwner
from feedback.model import SessionIdentity
from persistence.session_log import SessionLogs
from tests.unit.log_examples import CREATED_AT, CWD, SESSION, write

IDENTITY = SessionIdentity(created_at=CREATED_AT, cwd=CWD)
OWNER = LiveOwner(owner_id="o", session_id=SESSION, identity=IDENTITY)
OF_ANOTHER_LIFE = LiveOwner(owner_id="o", session_id=SESSION, identity=SessionIdentity(created_at=0, cwd=CWD))

DELETE = Need(durable=False)
PUT = Need(durable=True)
LIVE_PUT = Need(durable=True, owner=OWNER)
FLUSHED_PUT = Need(durable=True, owner=OWNER, answer=Flushed(IDENTITY, None))
PUT_AGAINST_A_NEW_LIFE = Need(durable=True, owner=OF_ANOTHER_LIFE)

LONG_AGO = 0
AHEAD = 2 * time.time_ns()
"""Of a log so young that a rewrite might not show in its times, or from a machine whose clock is ahead."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this thread asked of the disk that may take long; a stat is not in it."""
    calls: list[str] = []
    here = threading.current_thread()

    def record(name: str) -> None:
        real: Callable[..., object] = getattr(os, name)

        def recording(*arguments: object, **options: object) -> object:
            if threading.current_thread() is here:
                calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, recording)

    for name in ("open", "pread", "scandir", "fsync"):
        record(name)
    return calls


@pytest.mark.parametrize("modified_ns", [LONG_AGO, AHEAD], ids=["settled", "just changed"])
@pytest.mark.parametrize(
    "needs",
    [
        [PUT],
        [DELETE, PUT, PUT],
        [LIVE_PUT, FLUSHED_PUT, FLUSHED_PUT],
        [DELETE, PUT_AGAINST_A_NEW_LIFE, PUT_AGAINST_A_NEW_LIFE],
    ],
    ids=["cold put", "delete, put", "flush that adds nothing", "owner of another life"],
)
def test_whatever_waits_for_a_disk_is_done_in_another_thread(
    tmp_path: Path, waits: list[str], needs: list[Need], modified_ns: int
) -> None:
    path = write(tmp_path, 1)
    os.utime(path, ns=(modified_ns, modified_ns))
    with LogBarrier(SessionLogs(tmp_path), 2, patience_s=60) as barrier:
        waits.clear()
        answers = [barrier.check({SESSION: need})[SESSION] for need in needs]
    assert waits == []
    for need, answer in zip(needs, answers, strict=True):
        if need is LIVE_PUT:
            assert isinstance(answer, FlushNeeded)
        else:
            assert answer is not None
            assert not isinstance(answer, Exception)
            assert (answer.identity, answer.eligible("a1")) == (IDENTITY, True)


def test_what_needs_no_disk_needs_no_thread(tmp_path: Path) -> None:
    """Of a log that is durable already: nothing is started for it, whatever is asked."""
    os.utime(write(tmp_path, 1), ns=(LONG_AGO, LONG_AGO))
    logs = SessionLogs(tmp_path)
    assert logs.make_durable(SESSION) is not None
    behind = Need(durable=True, owner=OWNER, answer=Flushed(IDENTITY, 1000))
    before = set(threading.enumerate())
    with LogBarrier(logs, 2) as barrier:
        for need in (DELETE, PUT, LIVE_PUT, FLUSHED_PUT, PUT_AGAINST_A_NEW_LIFE):
            assert barrier.check({SESSION: need})[SESSION] is not None
        assert isinstance(barrier.check({SESSION: behind})[SESSION], FlushFailed)
        assert set(threading.enumerate()) <= before


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Makes each fsync of a file hang until the test ends."""
    fsync, hung, end = os.fsync, set[int](), threading.Event()

    def hang(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino in hung:
            end.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    yield lambda path: hung.add(path.stat().st_ino)
    end.set()


def test_a_log_whose_fsync_hangs_holds_up_its_own_puts_only(tmp_path: Path, hanging: Callable[[Path], None]) -> None:
    """More of them than there are threads, after they were inspected: a delete of theirs, and other logs, go on."""
    names = ["stuck1", "stuck2", "stuck3"]
    for name in names:
        path = write(tmp_path, 1, session_id=name)
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
        hanging(path)
    write(tmp_path, 1)
    with LogBarrier(SessionLogs(tmp_path), 2, patience_s=0.05) as barrier:
        for name in names:
            while isinstance(barrier.check({name: DELETE})[name], LogUnreadable):
                pass
        for _ in range(2):
            stuck = barrier.check(dict.fromkeys(names, PUT))
            assert all(isinstance(answer, LogUnreadable) for answer in stuck.values())
        deletes = barrier.check(dict.fromkeys(names, DELETE))
        assert not any(answer is None or isinstance(answer, Exception) for answer in deletes.values())
        while isinstance(barrier.check({SESSION: PUT})[SESSION], LogUnreadable):
            pass


_HUNG = """
import os, sys, threading
from pathlib import Path
from barrier.logs import LogBarrier
from barrier.rules import Need
from persistence.session_log import SessionLogs

os.fsync = lambda descriptor: threading.Event().wait()
with LogBarrier(SessionLogs(Path(sys.argv[1])), 2, patience_s=0.05) as barrier:
    print(type(barrier.check({sys.argv[2]: Need(durable=True)})[sys.argv[2]]).__name__)
"""


def test_a_process_ends_though_a_log_hangs(tmp_path: Path) -> None:
    """So a worker that is stopped in an orderly way is not killed for the sake of a disk."""
    write(tmp_path, 1)
    said = subprocess.run(
        [sys.executable, "-c", _HUNG, str(tmp_path), SESSION], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "LogUnreadable\n"
