"""Threads for work that may hang, and others in their place when it does."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")

_MOST_HELD = 8
"""Work that hangs may hold so many times the threads: a mount that hangs must not take memory without end."""

_Task: TypeAlias = tuple[Callable[[], None], Callable[[], bool]]
"""Does it; cancels it."""


class ReplaceableThreads:
    """So many threads at work at most, begun as work comes in. Whoever finds that one hangs has all of them replaced.

    Those that were replaced end after what they are at. Unlike those of an executor of the standard library, one that
    hangs does not keep the process from ending. For one thread.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._replaced: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Future[T] | None:
        """What comes of `work`; it can be cancelled until a thread gets to it. None while too many threads hang."""
        if len(self._threads) < self._number:
            self._replaced = [thread for thread in self._replaced if thread.is_alive()]
            if len(self._threads) + len(self._replaced) < _MOST_HELD * self._number:
                thread = threading.Thread(target=_serve, args=(self._tasks,), name="log-reader", daemon=True)
                thread.start()
                self._threads.append(thread)
        if not self._threads:
            return None
        future: Future[T] = Future()
        self._tasks.put((partial(_do, future, work), future.cancel))
        return future

    def replace(self) -> None:
        """Leave the threads to what they are at; others do what is submitted from now on. What none of them got to is
        cancelled."""
        with suppress(Empty):
            while task := self._tasks.get_nowait():
                task[1]()
        for _ in self._threads:
            self._tasks.put(None)
        self._replaced += self._threads
        self._tasks, self._threads = SimpleQueue(), []


def _serve(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task[0]()
        del task  # or it would keep its result until the next comes


def _do(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)
