"""Which life a Session is in: found out on threads, for a bounded number of questions, by a look that began later."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from feedback.calls import wall_clock_ms
from feedback.failures import Failure
from feedback.model import SessionIdentity
from feedback.queries import ListQuery
from persistence.sidecar.store import StoredSession
from projections.answers import Remembered
from projections.resolving import Found, Resolver

LIFE = SessionIdentity(created_at=1)


class HangingDisk:
    """Identities of Sessions of which `slow` ones cannot be read before `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        return LIFE if session_id == "known" else None

    def identity(self, session_id: str) -> SessionIdentity | None:
        if session_id == "poisoned":
            raise ZeroDivisionError("nobody thought of that")
        if session_id.startswith("slow"):
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


def rest(resolver: Resolver) -> dict[str, str]:
    """What comes until nothing is held any more."""
    found: dict[str, str] = {}
    while resolver.is_busy:
        found |= summary(resolver.resolved(()))
    return found


def test_a_hanging_disk_holds_a_bounded_number_of_questions(disk: HangingDisk) -> None:
    """The others are told to ask again, one by one or all at once; whoever repeats his question holds one place."""
    with ThreadPoolExecutor(2) as threads:
        resolver = Resolver(disk, threads, most_held=3)
        assert summary(resolver.resolved([query("1", "slow-a"), query("2", "slow-a"), query("known", "known")])) == {
            "known": "there"
        }
        assert summary(resolver.resolved([query("3", "slow-a"), query("4", "slow-b"), query("5", "slow-a")])) == {
            "4": "QueueUnavailable",
            "5": "QueueUnavailable",
        }
        assert summary(resolver.resolved([query("3", "slow-a")])) == {}
        disk.go_on.set()
        assert rest(resolver) == {"1": "there", "2": "there", "3": "there"}
        assert rest(resolver) | summary(resolver.resolved([query(str(n), f"quick-{n}") for n in range(3)])) | rest(
            resolver
        ) == {"0": "there", "1": "there", "2": "there"}


def test_who_has_gone_is_not_answered(disk: HangingDisk) -> None:
    """Past its deadline a question costs nothing more."""
    with ThreadPoolExecutor(2) as threads:
        resolver = Resolver(disk, threads)
        assert resolver.resolved([query("gone", "slow", seconds=-100), query("there", "slow")]) == []
        disk.go_on.set()
        assert rest(resolver) == {"there": "there"}


def test_a_session_that_breaks_its_reader_fails_by_itself(disk: HangingDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks about it is told so, the log has the traceback, and others are answered."""
    with ThreadPoolExecutor(2) as threads:
        resolver = Resolver(disk, threads)
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
