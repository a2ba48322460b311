"""The durability barrier: feedback never precedes its message on stable storage (CONTRACT, "Rules of `put`", 5)."""

from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Self

from barrier.rules import Answer, Barrier, Flushed, FlushNeeded, Need, Unrated, after_flush, must_flush
from barrier.threads import ReplaceableThreads
from feedback.errors import FeedbackError, LogUnreadable
from feedback.flushing import LiveOwner
from persistence.session_log import SessionLogs

PATIENCE_S = 5.0


class LogBarrier:
    """Reads Session logs, and puts them on stable storage where a put depends on it.

    Where a stat says that nothing is to be read or synced, it is all that is done in the caller's thread. All other
    logs are read and fsynced side by side, and one that takes too long (a disk that hangs) holds up its own Session
    only: its thread is replaced, up to a bound.
    """

    def __init__(self, logs: SessionLogs, threads: int, *, patience_s: float = PATIENCE_S) -> None:
        """`threads` logs are read at the same time; `patience_s` is how long one check waits for them."""
        self._logs = logs
        self._threads = ReplaceableThreads(threads)
        self._patience_s = patience_s
        self._hanging: dict[str, Future[Barrier]] = {}

    def check(self, needs: Mapping[str, Need]) -> dict[str, Barrier]:
        """The barrier's answer for each Session id; `FlushNeeded` where a live owner has to flush first."""
        answers: dict[str, Barrier] = {}
        unread: dict[str, Need] = {}
        for session_id, need in needs.items():
            answer = self._at_once(session_id, need)
            if answer is None:
                unread[session_id] = need
            else:
                answers[session_id] = answer
        return answers | self._read(unread) if unread else answers

    def close(self) -> None:
        """End the threads; a reading that hangs ends with the process at the latest."""
        self._threads.replace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _at_once(self, session_id: str, need: Need) -> Barrier:
        """The answer, if a stat is all it takes; None if a disk, or who reads it now, has to be waited for."""
        if not need.durable:
            return self._logs.peek_inspected(session_id)
        if isinstance(need.answer, FeedbackError):
            return need.answer
        if isinstance(need.answer, Flushed):
            view = self._logs.peek_durable(session_id)
            return None if view is None else after_flush(view, view.events, need.answer)
        if need.owner is not None:
            view = self._logs.peek_inspected(session_id)
            if view is None:
                return None
            if must_flush(view, need.owner):
                return FlushNeeded(need.owner)
        return self._logs.peek_durable(session_id)

    def _read(self, needs: Mapping[str, Need]) -> dict[str, Barrier]:
        """Read logs side by side, as long as there is patience for it; but for those that hang already."""
        self._hanging = {session_id: reading for session_id, reading in self._hanging.items() if not reading.done()}
        readings: dict[str, Future[Barrier]] = {}
        for session_id, need in needs.items():
            if session_id in self._hanging:
                continue
            reading = self._threads.submit(partial(self._answer, session_id, need))
            if reading is not None:
                readings[session_id] = reading
        if wait(readings.values(), self._patience_s).not_done:
            # What no thread got to does not hang: it is begun anew when it is asked for again.
            self._threads.replace()
            self._hanging |= {session_id: reading for session_id, reading in readings.items() if not reading.done()}
        answers: dict[str, Barrier] = {}
        for session_id in needs:
            reading = readings.get(session_id)
            if reading is None or session_id in self._hanging or reading.cancelled():
                answers[session_id] = LogUnreadable(session_id, str(self._logs.root), "its log takes long to be read")
            else:
                answers[session_id] = reading.result()
        return answers

    def _answer(self, session_id: str, need: Need) -> Barrier:
        try:
            if need.durable:
                return self._durable(session_id, need.owner, need.answer)
            view = self._logs.inspect(session_id)
            return Unrated(need.owner.identity) if view is None and need.owner is not None else view
        except FeedbackError as error:
            return error

    def _durable(self, session_id: str, owner: LiveOwner | None, answer: Answer | None) -> Barrier:
        if isinstance(answer, Flushed):
            view = self._logs.make_durable(session_id)
            return after_flush(view, 0 if view is None else view.events, answer)
        if owner is not None and must_flush(self._logs.inspect(session_id), owner):
            return FlushNeeded(owner)
        return self._logs.make_durable(session_id)
