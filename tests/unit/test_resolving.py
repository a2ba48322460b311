"""Which life a Session is in: found out on threads, for a bounded number of questions, by a look that began later."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from feedback.calls import wall_clock_ms
from feedback.failures import Failure
from feedback.model import SessionIdentity
from feedback.queries import ListQuery
from persistence.sidecar.store import StoredSession
from projections.answers import Remembered
from projections.looking import PATIENCE_S, Found
from projections.resolving import Resolver

LIFE = SessionIdentity(created_at=1)


class HangingDisk:
    """Identities of Sessions of which `slow` ones cannot be read before `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.hanging = threading.Semaphore(0)

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        return LIFE if session_id == "known" else None

    def identity(self, session_id: str) -> SessionIdentity | None:
        if session_id == "poisoned":
            raise ZeroDivisionError("nobody thought of that")
        if session_id.startswith("slow"):
            self.hanging.release()
            self.go_on.wait(30)
        return LIFE


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    disk = HangingDisk()
    yield disk
    disk.go_on.set()


def query(query_id: str, session_id: str, seconds: float = 60) -> ListQuery:
    return ListQuery(query_id=query_id, session_id=session_id, deadline=wall_clock_ms() + int(1000 * seconds))


def summary(resolved: list[tuple[ListQuery, Found]]) -> dict[str, str]:
    """Query id -> what was found, in a word."""
    return {
        asked.query_id: found.code if isinstance(found, Failure) else "there" if found else "nothing"
        for asked, found in resolved
    }


def collect(resolver: Resolver, queries: Sequence[ListQuery], expected: int) -> dict[str, str]:
    """What comes until so many are answered, however busy the machine is."""
    found = summary(resolver.resolved(queries))
    while len(found) < expected:
        found |= summary(resolver.resolved(()))
    return found


def rest(resolver: Resolver) -> dict[str, str]:
    """What comes until nothing is held any more."""
    found: dict[str, str] = {}
    while resolver.is_busy:
        found |= summary(resolver.resolved(()))
    return found


def test_a_hanging_disk_holds_a_bounded_number_of_questions(disk: HangingDisk) -> None:
    """The others are told to ask again, one by one or all at once; whoever repeats his question holds one place."""
    asked = [query(str(n), f"slow-{n}") for n in range(3)]
    with closing(Resolver(disk, 2, most_held=3)) as resolver:
        assert summary(resolver.resolved([*asked[:2], query("known", "known")])) == {"known": "there"}
        assert summary(resolver.resolved([asked[2], query("4", "slow-4"), query("5", "slow-5")])) == {
            "4": "QueueUnavailable",
            "5": "QueueUnavailable",
        }
        assert summary(resolver.resolved(asked)) == {}
        disk.go_on.set()
        assert rest(resolver) == {"0": "there", "1": "there", "2": "there"}
        assert collect(resolver, [query(str(n), f"quick-{n}") for n in range(3)], 3) == {
            "0": "there",
            "1": "there",
            "2": "there",
        }


def test_who_waits_in_vain_is_told_and_takes_no_room(disk: HangingDisk) -> None:
    """Before its deadline, so that the answer finds its reader; whether its Session is being read or would be next."""
    now_s = [100.0]
    with closing(Resolver(disk, 3, most_held=30, clock=lambda: now_s[0])) as resolver:
        assert resolver.resolved([query("1", "slow-a"), query("2", "slow-a", seconds=500)]) == []
        assert summary(resolver.resolved([query("3", "slow-a"), query("4", "slow-a")])) == {"4": "QueueUnavailable"}
        now_s[0] += 60
        assert collect(resolver, [query("4", "slow-a"), query("5", "quick")], 3) == {
            "1": "LogUnreadable",
            "3": "LogUnreadable",
            "5": "there",
        }
        disk.go_on.set()
        assert rest(resolver) == {"2": "there", "4": "there"}


def test_whose_clock_is_behind_waits_all_the_same(disk: HangingDisk) -> None:
    """A question that came past its deadline is held for a minute: how long it is waited for is not known."""
    now_s = [100.0]
    with closing(Resolver(disk, 2, clock=lambda: now_s[0])) as resolver:
        assert resolver.resolved([query("1", "slow", seconds=-4), query("2", "slow", seconds=2**40)]) == []
        now_s[0] += 59
        assert resolver.resolved(()) == []
        now_s[0] += 2
        assert summary(resolver.resolved(())) == {"1": "LogUnreadable"}
        now_s[0] += 600
        assert summary(resolver.resolved(())) == {"2": "LogUnreadable"}, "nothing is held for ever"
        assert not resolver.is_busy
        disk.go_on.set()


def test_one_session_does_not_take_all_room(disk: HangingDisk) -> None:
    """Of those that ask about one Session some wait; the others are told to ask again."""
    with closing(Resolver(disk, 2, most_held=30)) as resolver:
        assert resolver.resolved([query("1", "slow-a"), query("2", "slow-a")]) == []
        assert summary(resolver.resolved([query(name, "slow-a") for name in ("1", "3", "4")])) == {
            "4": "QueueUnavailable"
        }
        assert resolver.resolved([query("5", "slow-b")]) == []
        disk.go_on.set()
        assert rest(resolver) == dict.fromkeys(("1", "2", "3", "5"), "there")


def test_logs_that_hang_do_not_keep_the_threads_of_others(disk: HangingDisk) -> None:
    """They are given others, up to a bound; past it others wait, until one of those that hang goes on."""
    now_s = [100.0]
    with closing(Resolver(disk, 1, clock=lambda: now_s[0])) as resolver:
        for n in range(8):
            assert resolver.resolved([query(f"slow-{n}", f"slow-{n}", seconds=500)]) == []
            assert disk.hanging.acquire(timeout=30)
            assert resolver.resolved([query(f"quick-{n}", f"quick-{n}", seconds=500)]) == []
            now_s[0] += PATIENCE_S
            if n < 7:
                assert collect(resolver, [], 1) == {f"quick-{n}": "there"}
        assert resolver.resolved([query("another", "slow-8", seconds=500)]) == []
        assert not disk.hanging.acquire(blocking=False)
        disk.go_on.set()
        slow = {f"slow-{n}": "there" for n in range(8)}
        assert rest(resolver) == {**slow, "quick-7": "there", "another": "there"}


def test_who_waits_for_a_log_that_hangs_makes_room(disk: HangingDisk) -> None:
    """When there is none left."""
    now_s = [100.0]
    with closing(Resolver(disk, 3, most_held=3, clock=lambda: now_s[0])) as resolver:
        assert resolver.resolved([query("1", "slow-1")]) == []
        assert disk.hanging.acquire(timeout=30)
        now_s[0] += PATIENCE_S
        assert resolver.resolved([query("2", "slow-2"), query("3", "slow-3")]) == []
        now_s[0] += 1
        assert collect(resolver, [query("quick", "quick")], 2) == {"1": "LogUnreadable", "quick": "there"}
        disk.go_on.set()
        assert rest(resolver) == {"2": "there", "3": "there"}


def test_a_session_that_breaks_its_reader_fails_by_itself(disk: HangingDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks about it is told so, the log has the traceback, and others are answered."""
    with closing(Resolver(disk, 2)) as resolver:
        found = resolver.resolved([query("1", "poisoned"), query("2", "fine")])
        while resolver.is_busy:
            found += resolver.resolved(())
        assert summary(found) == {"1": "CommandFailed", "2": "there"}
        assert "ZeroDivisionError: nobody thought of that" in str(found)
        (record,) = caplog.records
        assert "'poisoned'" in record.getMessage()
        assert record.exc_info is not None


def test_answers_are_remembered_by_row_and_up_to_a_size() -> None:
    """One that is of another row is none; the least recently used make room."""
    remembered = Remembered(most_bytes=3 * 1512)
    rows = [StoredSession(LIFE, revision) for revision in range(5)]
    for number in range(3):
        remembered.put(f"s{number}", rows[1], bytes(1000))
    assert remembered.get("s0", rows[1]) == bytes(1000)
    assert remembered.get("s0", rows[2]) is None
    remembered.put("s3", rows[1], bytes(1000))
    assert [remembered.get(f"s{number}", rows[1]) is not None for number in range(4)] == [True, False, True, True]
    for revision in range(2, 5):
        remembered.put("s0", rows[revision], bytes(500 * revision))
    assert remembered.get("s0", rows[4]) == bytes(2000)
    assert remembered.get("s3", rows[1]) is not None, "an answer that was replaced takes no room"
    remembered.put("giant", rows[1], bytes(10_000))
    assert remembered.get("giant", rows[1]) is None
