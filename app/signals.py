"""SIGTERM, SIGINT and SIGHUP as a wish to stop, without the traps of signal handlers.

A handler runs between any two steps of the main thread, which may hold any lock: `threading.Event.set`
can deadlock there. So handlers set a flag and feed a `SimpleQueue`, whose `put` is reentrant by contract.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType


def _stopping() -> tuple[signal.Signals, ...]:
    """SIGHUP, which says that the terminal is gone, only where nobody has it ignored (`nohup`)."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *hang_up)


class SignalWatch:
    """Wait in the main thread for a wish to stop, or for a child's end."""

    def __init__(self) -> None:
        """Take the handlers of SIGTERM, SIGINT, SIGHUP and SIGCHLD, for as long as the process lives."""
        self.stop_requested = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        for number in (*_stopping(), signal.SIGCHLD):
            signal.signal(number, self._handle)

    def wait(self, timeout_s: float | None) -> None:
        """Return at the next of those signals (or one since the last call), or after `timeout_s` seconds."""
        try:
            self._woken.get(timeout=timeout_s)
        except Empty:
            return

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self.stop_requested = True
        self._woken.put(None)


@contextmanager
def stop_on_signals(stop: threading.Event, *, grace_s: float, exit_code: int) -> Iterator[None]:
    """Set `stop` on SIGTERM, SIGINT or SIGHUP; a process that is still in the block `grace_s` seconds later is ended.

    For the main thread of a process that does nothing else. What a hard end interrupts is redelivered.
    """
    asked: SimpleQueue[bool] = SimpleQueue()
    done = threading.Event()

    def obey() -> None:
        if not asked.get():
            return
        stop.set()
        if not done.wait(grace_s):
            os._exit(exit_code)

    previous = {number: signal.signal(number, lambda *_: asked.put(True)) for number in _stopping()}
    watcher = threading.Thread(target=obey, name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        asked.put(False)
        watcher.join()
        for number, handler in previous.items():
            signal.signal(number, handler)
