"""Workers and projectors killed, frozen and broken at every crash point: results, events and lists are the same.

Everyday runs have the cells of `EVERYDAY`; `pytest -m chaos tests/acceptance/test_crash_points.py` runs all others.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from app.exits import ExitCode
from app.processes import Child
from feedback import keys
from feedback.connection import connect
from feedback.crashpoints import VARIABLE, Action, CrashPoint
from tests.acceptance.command_line import feedback
from tests.acceptance.disturbed import Disturbed, Told, disturbed
from tests.harness import serving, wait_until
from tests.outcomes import stored_events
from tests.processes import is_stopped, kill, let_leases_run_out
from tests.proxy import Proxy, runs
from worker.queue import FINISH

pytestmark = [pytest.mark.server, pytest.mark.process]

INSIDE_ACKNOWLEDGEMENT = "inside-acknowledgement"
"""The script has run, its answer is on the way: held there by a proxy, no point of the code."""

TAKEOVER = (CrashPoint.AFTER_LEASE, CrashPoint.AFTER_FENCE, CrashPoint.AFTER_RECOVERY, CrashPoint.BEFORE_PUBLISHING)
DRAIN = (CrashPoint.BEFORE_RELEASE, CrashPoint.BEFORE_LEAVING)
PROJECTOR = (CrashPoint.BEFORE_CHECKPOINT, CrashPoint.AFTER_CHECKPOINT)
GENERATIONS = (CrashPoint.AFTER_SUCCESSION, CrashPoint.BEFORE_RETIRING, CrashPoint.AFTER_RETIRING)
STRAGGLERS = (CrashPoint.BEFORE_MOVE, CrashPoint.AFTER_MOVE)
"""These and those: `test_generation_crashes`. What is set aside: `test_set_aside`."""
AGENT = (
    CrashPoint.AFTER_ASKING,
    CrashPoint.AFTER_REGISTERING,
    CrashPoint.AFTER_QUESTION,
    CrashPoint.AFTER_READING,
    CrashPoint.BEFORE_TELLING,
)
"""These where logs are elsewhere: `test_agents`."""
ENGINE = (CrashPoint.AFTER_BARRIER, CrashPoint.BEFORE_COMMIT, CrashPoint.INSIDE_COMMIT, CrashPoint.AFTER_COMMIT)
WORKER = (
    *(
        point
        for point in CrashPoint
        if point not in (*PROJECTOR, *GENERATIONS, *STRAGGLERS, *AGENT, CrashPoint.AFTER_ASIDE)
    ),
    INSIDE_ACKNOWLEDGEMENT,
)
ALIVE = tuple(place for place in WORKER if place is not CrashPoint.INSIDE_COMMIT)
"""Where a worker can be frozen: not while it holds SQLite's write lock, which nobody else gets until it is thawed or
killed. That is SQLite's nature (docs/operations.md)."""


class Cell(NamedTuple):
    """What is done to a process, and where."""

    place: str
    action: Action
    times: int = 1

    def __str__(self) -> str:
        return f"{self.action}-{self.place}" + (f"-{self.times}-times" if self.times > 1 else "")


KILLED = [Cell(place, Action.KILL) for place in WORKER]
KILLED_AGAIN = [Cell(place, Action.KILL, times=3) for place in WORKER]
FROZEN = [Cell(place, Action.STOP) for place in ALIVE]
BROKEN = [Cell(place, Action.RAISE) for place in WORKER if place != INSIDE_ACKNOWLEDGEMENT]

EVERYDAY = {
    *KILLED,
    *(cell for cell in KILLED_AGAIN if cell.place in {CrashPoint.AFTER_RECOVERY, CrashPoint.AFTER_COMMIT}),
    *(
        cell
        for cell in FROZEN
        if cell.place
        in {CrashPoint.AFTER_FENCE, CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT, INSIDE_ACKNOWLEDGEMENT}
    ),
    *(cell for cell in BROKEN if cell.place in ENGINE),
}


def cells(of: list[Cell]) -> pytest.MarkDecorator:
    """A test per cell; those that are not for every day bear the marker `chaos`."""
    marked = [pytest.param(cell, id=str(cell), marks=[] if cell in EVERYDAY else [pytest.mark.chaos]) for cell in of]
    return pytest.mark.parametrize("cell", marked)


@pytest.fixture(scope="module")
def undisturbed(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """What callers are told when nothing goes wrong."""
    with connect(valkey_url) as redis:
        redis.flushall()
        with disturbed(valkey_url, redis, tmp_path_factory.mktemp("undisturbed")) as system, serving(system.settings):
            wait_until(system.is_worked_off, "everything but the parked Session is answered")
            return system.finish()


@pytest.fixture
def system(undisturbed: list[Told], valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Disturbed]:
    with disturbed(valkey_url, redis_client, tmp_path) as system:
        yield system


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """What a test starts, ended in the end."""
    with ExitStack() as stack:
        yield stack


def disturb(system: Disturbed, cell: Cell, processes: ExitStack) -> Child:
    """A worker that is dead, or stands still, at the cell's place."""
    if cell.place == INSIDE_ACKNOWLEDGEMENT:
        proxy = processes.enter_context(Proxy(system.settings.redis_url))
        trap = proxy.hold_reply(runs(FINISH))
        worker = started(system, processes, "", url=proxy.url)
        trap.wait()
        kill(worker, signal.SIGKILL if cell.action is Action.KILL else signal.SIGSTOP)
        trap.release()
    else:
        worker = started(system, processes, f"{cell.place}:{cell.action}")
    if cell.place in DRAIN:
        wait_until(system.is_worked_off, "the worker does nothing but wait for the parked Session")
        kill(worker, signal.SIGTERM)
    if cell.action is Action.KILL:
        wait_until(lambda: worker.poll() == -signal.SIGKILL, f"the worker is killed {cell.place}")
    else:
        wait_until(lambda: is_stopped(worker), f"the worker is frozen {cell.place}")
    let_leases_run_out(system.redis, worker)
    return worker


def started(system: Disturbed, processes: ExitStack, crash_point: str, *, url: str | None = None) -> Child:
    worker = system.start("worker", crash_point, url=url)
    processes.callback(worker.stop, 0)
    return worker


def leave_a_partition_behind(system: Disturbed, processes: ExitStack) -> None:
    """A first worker dies with everything claimed and committed: there is something to take over, and to publish."""
    disturb(system, Cell(CrashPoint.AFTER_COMMIT, Action.KILL), processes)


@cells([*KILLED, *KILLED_AGAIN])
def test_a_worker_killed_anywhere_leaves_no_trace(
    system: Disturbed, undisturbed: list[Told], processes: ExitStack, cell: Cell
) -> None:
    """Each command has the outcome that it would have had, one event, and each list is the store's."""
    if cell.place in TAKEOVER:
        leave_a_partition_behind(system, processes)
    for _ in range(cell.times):
        disturb(system, cell, processes)
        system.submit_more()
    with serving(system.settings):
        assert system.finish() == undisturbed


@cells(FROZEN)
def test_a_worker_frozen_anywhere_commits_nothing_when_it_thaws(
    system: Disturbed, undisturbed: list[Told], processes: ExitStack, cell: Cell
) -> None:
    """Another one does its work meanwhile; it wakes up in the midst of that, notices, and joins again."""
    if cell.place in TAKEOVER:
        leave_a_partition_behind(system, processes)
    frozen = disturb(system, cell, processes)
    system.submit_more()
    before = system.owners()
    with serving(system.settings):
        wait_until(lambda: system.owners() and system.owners().isdisjoint(before), "another takes all over")
        wait_until(system.is_worked_off, "it does the work")
        kill(frozen, signal.SIGCONT)
        if cell.place in DRAIN:
            wait_until(lambda: frozen.poll() == 0, "the thawed one leaves")
        else:
            wait_until(lambda: len(system.owners()) == 2, "the thawed one joins again")
        system.submit_more()
        assert system.finish() == undisturbed
        assert frozen.stop(system.settings.shutdown_grace)


@pytest.mark.parametrize("place", [CrashPoint.AFTER_CLAIM, CrashPoint.AFTER_BARRIER, CrashPoint.BEFORE_COMMIT])
def test_a_worker_that_thaws_before_its_successor_has_begun_is_fenced_off(
    system: Disturbed, undisturbed: list[Told], processes: ExitStack, place: CrashPoint
) -> None:
    """What it holds nobody has done yet, so that only the fence is in its way."""
    frozen = disturb(system, Cell(place, Action.STOP), processes)
    successor = started(system, processes, f"{CrashPoint.AFTER_RECOVERY}:{Action.STOP}")
    wait_until(lambda: is_stopped(successor), "another has taken over, and does nothing yet")
    kill(frozen, signal.SIGCONT)
    wait_until(lambda: "fenced off" in frozen.log.read_text(), "it notices")
    kill(successor, signal.SIGCONT)
    with serving(system.settings, workers=0):
        assert system.finish() == undisturbed
    first, second, *_ = sorted({event.epoch for event in stored_events(system.settings)})
    assert (first, second) == (1, 3), "the epoch between was the frozen one's: it committed nothing"


@cells(BROKEN)
def test_a_defect_anywhere_costs_no_command(
    system: Disturbed, undisturbed: list[Told], processes: ExitStack, cell: Cell
) -> None:
    """One that passes: the batch is tried again command by command, or the process ends and another does the work."""
    if cell.place in TAKEOVER:
        leave_a_partition_behind(system, processes)
    broken = started(system, processes, f"{cell.place}:{cell.action}")
    if cell.place in DRAIN:
        wait_until(system.is_worked_off, "the worker does nothing but wait for the parked Session")
        kill(broken, signal.SIGTERM)
    wait_until(lambda: "crash point reached" in broken.log.read_text(), "the defect is met")
    system.submit_more()
    with serving(system.settings):
        assert system.finish() == undisturbed
        if cell.place in ENGINE:
            assert broken.stop(system.settings.shutdown_grace), "it lives on, and drains"


@pytest.mark.parametrize("place", PROJECTOR)
@pytest.mark.parametrize("action", [Action.KILL, Action.STOP])
def test_a_projector_disturbed_around_its_checkpoint_leaves_lists_that_equal_the_store(
    system: Disturbed, undisturbed: list[Told], processes: ExitStack, place: CrashPoint, action: Action
) -> None:
    """Killed, or frozen while a second one works and it wakes up in its footsteps."""
    projector = system.start("projector", f"{place}:{action}")
    processes.callback(projector.stop, 0)
    wait_until(lambda: system.redis.exists(keys.checkpoint(1)), "it follows the streams")
    with serving(system.settings, projector=False):
        if action is Action.KILL:
            wait_until(lambda: projector.poll() == -signal.SIGKILL, "the projector is killed")
        else:
            wait_until(lambda: is_stopped(projector), "the projector is frozen")
        system.submit_more()
        with serving(system.settings, workers=0):
            wait_until(system.is_worked_off, "work goes on")
            system.submit_more()
            if action is Action.STOP:
                kill(projector, signal.SIGCONT)
            assert system.finish() == undisturbed
            if action is Action.STOP:
                assert projector.stop(system.settings.shutdown_grace)


@pytest.mark.parametrize("name", ["worker", "projector"])
def test_a_point_that_does_not_exist_stops_a_process_at_its_start(name: str) -> None:
    """A test with a typo must not pass because nothing happened."""
    answer = feedback(name, env={VARIABLE: "after-lunch:kill"})
    assert answer.code == ExitCode.USAGE
    assert f"SettingsInvalid: {VARIABLE}: no crash point 'after-lunch'; there are after-lease, " in answer.err
