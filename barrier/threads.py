"""Threads for work that may hang."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """So many threads at most, begun as work comes in.

    Unlike those of an executor of the standard library, one that hangs does not keep the process from ending.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = 0
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """What comes of `work`. It can be cancelled until a thread gets to it."""
        future: Future[T] = Future()
        self._work.put(partial(_do, future, work))
        if self._begun < self._most:
            threading.Thread(target=self._serve, name=f"log-reader-{self._begun}", daemon=True).start()
            self._begun += 1
        return future

    def end(self) -> None:
        """Let each thread end after what it is at. Nothing is submitted any more."""
        for _ in range(self._begun):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # or it would keep its result until the next comes


def _do(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)
