"""The barrier over several Sessions: unchanged logs cost no thread, changed ones are read side by side."""

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from barrier.logs import LogBarrier
from barrier.rules import FlushNeeded, Need
from feedback.errors import LogCorrupt, LogUnreadable
from feedback.flushing import LiveOwner
from feedback.model import SessionIdentity
from persistence.session_log import LogView, SessionLogs

IDENTITY = SessionIdentity(created_at=1, cwd="/w")


class View:
    identity = IDENTITY
    events = 1

    def eligible(self, message_id: str) -> bool:
        return message_id == "m"


VIEW = cast("LogView", View())


class Logs:
    """Stands for `SessionLogs`: which Sessions are unchanged, and what reading one does."""

    def __init__(self, unchanged: tuple[str, ...] = ()) -> None:
        self.unchanged = unchanged
        self.durable: tuple[str, ...] = ()
        self.root = "/sessions"
        self.hangs: dict[str, threading.Event] = {}
        self.meet: threading.Barrier | None = None
        self.asked: list[tuple[str, str]] = []

    def peek_inspected(self, session_id: str) -> LogView | None:
        return VIEW if session_id in self.unchanged else None

    def peek_durable(self, session_id: str) -> LogView | None:
        return VIEW if session_id in self.durable else None

    def inspect(self, session_id: str) -> LogView | None:
        return self._read("inspect", session_id)

    def make_durable(self, session_id: str) -> LogView | None:
        return self._read("make_durable", session_id)

    def _read(self, how: str, session_id: str) -> LogView | None:
        self.asked.append((how, session_id))
        if session_id in self.hangs:
            self.hangs[session_id].wait()
        if self.meet is not None:
            self.meet.wait(timeout=30)
        match session_id:
            case "absent":
                return None
            case "corrupt":
                raise LogCorrupt(session_id, "/p", "bad frame")
            case "unreadable":
                raise LogUnreadable(session_id, "/p", "EIO")
            case _:
                return VIEW


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs()
    yield logs
    for hanging in logs.hangs.values():
        hanging.set()


@pytest.fixture
def barrier(logs: Logs) -> Iterator[LogBarrier]:
    with LogBarrier(cast("SessionLogs", logs), threads=2) as barrier:
        yield barrier


DURABLE = Need(durable=True)


def test_logs_that_changed_are_read_side_by_side(logs: Logs, barrier: LogBarrier) -> None:
    """Two readings that wait for each other: one after the other they would never end."""
    logs.meet = threading.Barrier(2)
    assert barrier.check({"a": DURABLE, "b": DURABLE}) == {"a": VIEW, "b": VIEW}


def test_unchanged_logs_that_are_durable_are_not_asked_for_again(logs: Logs, barrier: LogBarrier) -> None:
    """Though a live owner may have more than they hold."""
    logs.unchanged = logs.durable = ("a", "live", "delete")
    owner = LiveOwner(owner_id="o", session_id="live", identity=IDENTITY)
    needs = {"a": DURABLE, "live": Need(durable=True, owner=owner), "delete": Need(durable=False)}
    answers = barrier.check(needs)
    assert answers["a"] is answers["delete"] is VIEW
    assert isinstance(answers["live"], FlushNeeded)
    assert logs.asked == []


def test_a_log_that_hangs_holds_up_its_own_session_only(logs: Logs) -> None:
    """Also when it is asked for again and again: no second thread is given to it."""
    go_on = threading.Event()
    logs.hangs = {"stuck": go_on}
    with LogBarrier(cast("SessionLogs", logs), threads=2, patience_s=0.01) as barrier:
        for _ in range(5):
            assert isinstance(barrier.check({"stuck": DURABLE})["stuck"], LogUnreadable)
        while isinstance(barrier.check({"a": DURABLE})["a"], LogUnreadable):
            pass
        assert logs.asked.count(("make_durable", "stuck")) == 1
        go_on.set()
        while isinstance(barrier.check({"stuck": DURABLE})["stuck"], LogUnreadable):
            pass


def test_logs_that_wait_behind_those_that_hang_are_read_the_next_time(logs: Logs) -> None:
    """Threads that hang are replaced, and what no thread got to does not count as hanging."""
    logs.hangs = dict.fromkeys(("stuck1", "stuck2"), threading.Event())
    with LogBarrier(cast("SessionLogs", logs), threads=2, patience_s=0.01) as barrier:
        while len(logs.asked) < 2:
            barrier.check(dict.fromkeys(("stuck1", "stuck2", "a"), DURABLE))
        while isinstance(barrier.check({"a": DURABLE})["a"], LogUnreadable):
            pass


def test_threads_that_hang_are_replaced_up_to_a_bound(logs: Logs) -> None:
    """Past it nothing is begun, until one of them goes on."""
    logs.hangs = {f"stuck{number}": threading.Event() for number in range(20)}
    with LogBarrier(cast("SessionLogs", logs), threads=1, patience_s=0.01) as barrier:
        for _ in range(2):
            answers = [barrier.check({name: DURABLE})[name] for name in logs.hangs]
            assert all(isinstance(answer, LogUnreadable) for answer in answers)
        while len(logs.asked) < 8:
            barrier.check(dict.fromkeys(logs.hangs, DURABLE))
        for _ in range(3):
            assert isinstance(barrier.check({"a": DURABLE})["a"], LogUnreadable)
        assert len(logs.asked) == 8
        logs.hangs[logs.asked[0][1]].set()
        while isinstance(barrier.check({"a": DURABLE})["a"], LogUnreadable):
            pass


def test_only_a_put_needs_the_log_durable(logs: Logs, barrier: LogBarrier) -> None:
    barrier.check({"put": DURABLE})
    barrier.check({"delete": Need(durable=False)})
    assert logs.asked == [("make_durable", "put"), ("inspect", "delete")]


def test_each_session_has_its_own_answer(barrier: LogBarrier) -> None:
    answers = barrier.check(dict.fromkeys(("a", "absent", "corrupt", "unreadable"), DURABLE))
    assert answers["a"] is VIEW
    assert answers["absent"] is None
    assert isinstance(answers["corrupt"], LogCorrupt)
    assert isinstance(answers["unreadable"], LogUnreadable)


def test_what_nobody_foresaw_is_raised(barrier: LogBarrier, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is not a failure of the contract: whoever runs the batch has to isolate it."""

    def broken(session_id: str) -> LogView | None:
        raise ZeroDivisionError

    monkeypatch.setattr(logs, "make_durable", broken)
    with pytest.raises(ZeroDivisionError):
        barrier.check({"a": DURABLE, "b": DURABLE})
