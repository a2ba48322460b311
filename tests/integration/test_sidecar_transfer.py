"""Moving a store from one engine to the other: nothing is lost, and at no moment both serve."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from feedback.errors import FeedbackError, MigrationFailed, SettingsInvalid, StoreMoved
from feedback.partitions import PartitionId
from persistence.sidecar import SidecarStore, open_store
from persistence.sidecar.store import PutItem, StartSession, StoredTopology
from persistence.sidecar.transfer import Moved, Step, abandon, move
from persistence.sidecar.transfer.postgres import PostgresEnd
from persistence.sidecar.transfer.sqlite import SqliteEnd
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, P1, SECOND_LIFE, commit, item, record
from tests.integration.sidecar_children import child, line_of
from tests.postgres import Databases

TOPOLOGY = StoredTopology(1, 2, deployment=2**61)
TEXTS = ("", "\0", "s", "s\0", "é", "e\u0301", "\U0001f600", "x" * 1000, "y" * 1001, "y" * 1001 + "z")


@pytest.fixture(params=["to PostgreSQL", "to SQLite"])
def urls(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A store's URL, and another engine's for where it goes. Nothing is in either."""
    with databases.one() as url:
        pair = f"sqlite:///{tmp_path / 'sidecar.sqlite3'}", url
        yield pair if request.param == "to PostgreSQL" else pair[::-1]


def fill(store: SidecarStore) -> None:
    """Some of everything."""
    store.set_topology(TOPOLOGY, replacing=None)
    epochs = {partition: fence.epoch for partition, fence in store.acquire_fences([P0, P1], "first").items()}
    epochs |= {partition: fence.epoch for partition, fence in store.acquire_fences([P1], "second").items()}
    for number, session_id in enumerate(TEXTS):
        identity = SECOND_LIFE if number % 2 else FIRST_LIFE
        puts = [PutItem(session_id, item(text, note=text or None), nth) for nth, text in enumerate(TEXTS, start=1)]
        records = [
            record(10 * number + nth, session_id=session_id, expires_at=nth, command_id=command_id(10 * number + nth))
            for nth in range(1, 11)
        ]
        commit(store, [StartSession(session_id, identity), *puts], records, epochs={P0: epochs[P0]})
    store.prune(expired_before=3, limit=7)


def command_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def seen(store: SidecarStore) -> dict[str, object]:
    """All that a store says through its protocol."""
    health = store.health()
    return {
        "topology": store.topology(),
        "heads": store.heads([P0, P1, PartitionId(2, 0)]),
        "places": store.session_ids(0, 100),
        "feedback": [store.feedback(name) for name in TEXTS],
        "history": [store.history(name, (0, 0, 0), 100) for name in TEXTS],
        "records": [store.record(command_id(number)) for number in range(1, 10 * len(TEXTS) + 1)],
        "counts": (health.sessions, health.items, health.commands),
    }


def filled(url: str) -> dict[str, object]:
    with closing(open_store(url)) as store:
        fill(store)
        return seen(store)


def quietly(step: Step) -> None:
    """Nobody watches."""


def serves(url: str) -> bool:
    """Whether a process that starts on this store may use it."""
    try:
        open_store(url).close()
    except StoreMoved:
        return False
    return True


def assert_moved(urls: tuple[str, str], before: dict[str, object]) -> Moved:
    """Run it to its end: the target has all, and goes on where the source stopped."""
    moved = move(*urls, quietly)
    assert (serves(urls[0]), serves(urls[1])) == (False, True)
    again = move(*urls, quietly)
    assert again.already
    assert again.censuses == moved.censuses
    with closing(open_store(urls[1])) as store:
        assert seen(store) == before
        fences = store.acquire_fences([P0, P1], "third")
        assert {partition: (fence.epoch, fence.sequence) for partition, fence in fences.items()} == {
            P0: (2, 10 * len(TEXTS)),
            P1: (3, 0),
        }
        commit(store, [StartSession("new", FIRST_LIFE)], [record(10 * len(TEXTS) + 1)], epochs={P0: 2})
        assert store.session_ids(len(TEXTS), 10) == [(len(TEXTS) + 1, "new")]
    return moved


class Killed(BaseException):
    """Stands for a kill between two transactions."""


def test_everything_is_the_same_there_and_back_again(
    urls: tuple[str, str], databases: Databases, tmp_path: Path
) -> None:
    before = filled(urls[0])
    there = move(*urls, quietly)
    with databases.one() as other:
        back = other if urls[0].startswith("postgres") else f"sqlite:///{tmp_path / 'back'}"
        assert assert_moved((urls[1], back), before).censuses == there.censuses


@pytest.mark.parametrize(
    ("method", "nth"), [("begin", 1), ("seal", 1), ("write", 1), ("write", 5), ("finish", 1), ("finish", 2)]
)
def test_killed_after_any_step_it_goes_on_and_never_two_serve(
    urls: tuple[str, str], method: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(urls[0])
    left = [nth]
    for end in (SqliteEnd, PostgresEnd):
        honest: Callable[..., None] = getattr(end, method)

        def then_die(*arguments: Any, honest: Callable[..., None] = honest) -> None:
            honest(*arguments)
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        monkeypatch.setattr(end, method, then_die)
    with suppress(Killed):
        move(*urls, quietly)
    monkeypatch.undo()
    assert not (serves(urls[0]) and serves(urls[1]))
    assert_moved(urls, before)


@pytest.mark.process
def test_killed_for_real_again_and_again_it_comes_to_its_end(urls: tuple[str, str]) -> None:
    """SIGKILL while it copies or compares, three times; each run does a little more."""
    before = filled(urls[0])
    script = """
import sys
from persistence.sidecar.transfer import moving
moving._FIRST_PAGE_ROWS = moving._PAGE_ROWS = 16
moving.move(sys.argv[1], sys.argv[2], lambda step: print(step.what, step.done, flush=True))
print("moved", flush=True)
"""
    for run in range(3):
        with child(script, *urls) as process:
            for _ in range(3 + 3 * run):
                assert line_of(process).startswith(("copied", "compared"))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        assert (serves(urls[0]), serves(urls[1])) == (False, False)
    assert assert_moved(urls, before).resumed


def test_a_store_that_is_being_moved_refuses_whoever_still_writes_and_in_the_end_readers_too(
    urls: tuple[str, str],
) -> None:
    filled(urls[0])
    with closing(open_store(urls[0])) as running:
        epoch = running.acquire_fences([P0], "running")[P0].epoch

        def meanwhile(step: Step) -> None:
            if step.what == "copied" and step.done == step.total:
                writes: list[Callable[[], object]] = [
                    lambda: commit(running, records=[record(101)], epochs={P0: epoch}),
                    lambda: commit(running, [PutItem("s", item("m"), 99)]),
                    lambda: running.acquire_fences([P0], "again"),
                    lambda: running.set_topology(TOPOLOGY, replacing=TOPOLOGY),
                    lambda: running.retire(TOPOLOGY),
                    lambda: running.prune(expired_before=2**60, limit=1),
                ]
                for write in writes:
                    with pytest.raises(StoreMoved, match="is being moved to"):
                        write()
                assert (serves(urls[0]), serves(urls[1])) == (False, False)

        move(*urls, meanwhile)
        with pytest.raises(FeedbackError):
            running.feedback("s")
        with pytest.raises(StoreMoved, match="was moved to"):
            running.heads([P0])


def test_one_that_is_given_up_serves_again_and_can_be_moved_later(urls: tuple[str, str]) -> None:
    before = filled(urls[0])

    def die(step: Step) -> None:
        raise Killed

    with pytest.raises(Killed):
        move(*urls, die)
    for _ in range(2):
        abandon(*urls)
        assert (serves(urls[0]), serves(urls[1])) == (True, True)
    with closing(open_store(urls[0])) as store:
        assert seen(store) == before
        commit(store, [PutItem("s", item("m"), 99)])
        before = seen(store)
    assert_moved(urls, before)
    with pytest.raises(SettingsInvalid, match="finished, and the target may be in use"):
        abandon(*urls)


def test_what_holds_anything_else_is_never_written_to(urls: tuple[str, str], tmp_path: Path) -> None:
    filled(urls[0])
    filled(urls[1])
    third = f"sqlite:///{tmp_path / 'third'}"
    with pytest.raises(SettingsInvalid, match="holds something already"):
        move(*urls, quietly)
    with pytest.raises(SettingsInvalid, match="there is no store"):
        move(third, urls[1], quietly)
    assert not (tmp_path / "third").exists()
    assert (serves(urls[0]), serves(urls[1])) == (True, True)
    move(urls[0], third, quietly)
    with pytest.raises(SettingsInvalid, match="was moved to"):
        move(urls[0], f"sqlite:///{tmp_path / 'fourth'}", quietly)
    with pytest.raises(SettingsInvalid, match="is a copy of"):
        move(urls[1], third, quietly)
    with pytest.raises(SettingsInvalid, match="was itself moved"):
        move(third, urls[0], quietly)
    with pytest.raises(SettingsInvalid, match=r"was itself moved|holds something already"):
        move(urls[1], urls[1], quietly)


def test_a_copy_that_differs_serves_nobody(urls: tuple[str, str], databases: Databases) -> None:
    filled(urls[0])

    def tamper(step: Step) -> None:
        if step.what == "copied" and step.done == step.total:
            for end in (SqliteEnd, PostgresEnd):
                with suppress(FeedbackError):
                    target = end(Path(urls[1].removeprefix("sqlite:///")) if end is SqliteEnd else urls[1])  # type: ignore[arg-type]  # one of both
                    break
            with closing(target):
                _overwrite(target)

    with pytest.raises(MigrationFailed, match=r"table item: 100 rows .* but 100 with"):
        move(*urls, tamper)
    assert (serves(urls[0]), serves(urls[1])) == (False, False)
    abandon(*urls)
    assert serves(urls[0])


def _overwrite(target: SqliteEnd | PostgresEnd) -> None:
    with target._connections.lease() as connection:
        connection.execute("UPDATE item SET updated_at = 7 WHERE position = 3")


def test_two_runs_at_once_do_nothing_twice(urls: tuple[str, str]) -> None:
    before = filled(urls[0])
    steps: list[Step] = []

    def die(step: Step) -> None:
        raise Killed

    def let_another_run(step: Step) -> None:
        steps.append(step)
        if len(steps) == 1:
            with pytest.raises(Killed):
                move(*urls, die)

    with pytest.raises(SettingsInvalid, match="another `feedback migrate` works on"):
        move(*urls, let_another_run)
    assert len(steps) == 1
    assert_moved(urls, before)
