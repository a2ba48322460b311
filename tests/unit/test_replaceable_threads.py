"""Threads that are replaced: what they were at goes on, what they did not get to is cancelled, and there is a bound."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from barrier.threads import ReplaceableThreads
from tests.harness import wait_until

PATIENCE_S = 30.0


class Disk:
    """Reads of it hang until it goes on."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self._hanging = threading.Semaphore(0)

    def read(self) -> str:
        self._hanging.release()
        self._go_on.wait()
        return "read"

    def hold(self, threads: ReplaceableThreads) -> Future[str]:
        """Have one of the threads hang, and wait until it does."""
        reading = given(threads, self.read)
        assert self._hanging.acquire(timeout=PATIENCE_S)
        return reading

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
def disks() -> Iterator[list[Disk]]:
    disks = [Disk() for _ in range(20)]
    yield disks
    for disk in disks:
        disk.go_on()


@pytest.fixture
def threads() -> Iterator[ReplaceableThreads]:
    threads = ReplaceableThreads(2)
    yield threads
    threads.replace()


def given(threads: ReplaceableThreads, work: Callable[[], str]) -> Future[str]:
    future = threads.submit(work)
    assert future is not None
    return future


def test_work_is_done_side_by_side_and_what_it_raises_is_raised_where_it_is_asked_for(
    threads: ReplaceableThreads,
) -> None:
    """On so many threads, however much there is to do."""
    meet = threading.Barrier(2)

    def meeting() -> str:
        meet.wait(PATIENCE_S)
        return str(threading.get_ident())

    met = [given(threads, meeting) for _ in range(20)]
    assert len({one.result(PATIENCE_S) for one in met}) == 2
    with pytest.raises(ZeroDivisionError):
        given(threads, lambda: str(1 // 0)).result(PATIENCE_S)


def test_threads_that_hang_are_replaced(threads: ReplaceableThreads, disks: list[Disk]) -> None:
    """What they are at comes when it comes; what they did not get to is cancelled; the next is done by others."""
    hanging = [disk.hold(threads) for disk in disks[:2]]
    waiting = given(threads, lambda: "never")
    threads.replace()
    assert waiting.cancelled()
    assert given(threads, lambda: "done").result(PATIENCE_S) == "done"
    assert not any(one.done() for one in hanging)
    disks[0].go_on()
    assert hanging[0].result(PATIENCE_S) == "read"
    assert not hanging[1].done()


def test_no_more_threads_hang_than_eight_times_as_many_as_there_are(
    threads: ReplaceableThreads, disks: list[Disk]
) -> None:
    """Past that nothing is begun, until one of them goes on."""
    for disk in disks[:16]:
        disk.hold(threads)
        threads.replace()
    assert threads.submit(lambda: "refused") is None
    disks[3].go_on()
    wait_until(lambda: threads.submit(disks[16].read) is not None, "there is room for one")


def test_threads_that_were_replaced_end(disks: list[Disk]) -> None:
    """Those that do not hang at once, others when they go on: none is left behind."""
    before = set(threading.enumerate())
    threads = ReplaceableThreads(2)
    disks[0].hold(threads)
    assert given(threads, lambda: "done").result(PATIENCE_S) == "done"
    threads.replace()
    wait_until(lambda: len(set(threading.enumerate()) - before) == 1, "the idle one ends")
    disks[0].go_on()
    wait_until(lambda: set(threading.enumerate()) <= before, "the other one ends")


def test_a_result_is_not_kept_for_longer_than_by_whoever_asked(threads: ReplaceableThreads) -> None:
    """A thread that waits for work holds nothing of the last."""

    class Large:
        pass

    large = threads.submit(Large)
    assert large is not None
    kept = weakref.ref(large.result(PATIENCE_S))
    del large
    wait_until(lambda: gc.collect() >= 0 and kept() is None, "it is gone")
