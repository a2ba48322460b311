"""The durability barrier: feedback never precedes its message on stable storage (CONTRACT, "Rules of `put`", 5)."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from barrier.rules import Answer, Barrier, Flushed, FlushNeeded, Need, Unrated, after_flush, must_flush
from feedback.errors import FeedbackError, LogUnreadable
from feedback.flushing import LiveOwner
from persistence.session_log import SessionLogs

PATIENCE_S = 5.0


class LogBarrier:
    """Reads Session logs, and puts them on stable storage where a put depends on it.

    A log that did not change since it was last read costs a stat, in the caller's thread. Those that did are
    read and fsynced side by side, and one that takes too long (a disk that hangs) holds up its own Session only.
    """

    def __init__(self, logs: SessionLogs, threads: int, *, patience_s: float = PATIENCE_S) -> None:
        """`patience_s` is how long one check waits for a log to be read."""
        self._logs = logs
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="barrier")
        self._patience_s = patience_s
        self._hanging: dict[str, Future[Barrier]] = {}

    def check(self, needs: Mapping[str, Need]) -> dict[str, Barrier]:
        """The barrier's answer for each Session id; `FlushNeeded` where a live owner has to flush first."""
        answers: dict[str, Barrier] = {}
        grown = []
        for session_id, need in needs.items():
            at_rest = need.durable and need.owner is None and need.answer is None
            if at_rest and (view := self._logs.peek_durable(session_id)) is not None:
                answers[session_id] = view
            elif self._logs.peek(session_id) is None:
                grown.append(session_id)
            else:
                answers[session_id] = self._answer(session_id, need)
        return answers | self._read({session_id: needs[session_id] for session_id in grown}) if grown else answers

    def _read(self, needs: Mapping[str, Need]) -> dict[str, Barrier]:
        """Read logs side by side, as long as there is patience for it."""
        self._hanging = {session_id: reading for session_id, reading in self._hanging.items() if not reading.done()}
        readings = {
            session_id: self._hanging.get(session_id) or self._pool.submit(self._answer, session_id, need)
            for session_id, need in needs.items()
        }
        wait([reading for session_id, reading in readings.items() if session_id not in self._hanging], self._patience_s)
        answers: dict[str, Barrier] = {}
        for session_id, reading in readings.items():
            if session_id not in self._hanging and reading.done():
                answers[session_id] = reading.result()
            else:
                self._hanging[session_id] = reading
                answers[session_id] = LogUnreadable(session_id, str(self._logs.root), "its log takes long to be read")
        return answers

    def close(self) -> None:
        """End the threads; a reading that hangs is left to the end of the process."""
        self._pool.shutdown(wait=not self._hanging, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, session_id: str, need: Need) -> Barrier:
        try:
            if need.durable:
                return self._durable(session_id, need.owner, need.answer)
            view = self._logs.inspect(session_id)
            return Unrated(need.owner.identity) if view is None and need.owner is not None else view
        except FeedbackError as error:
            return error

    def _durable(self, session_id: str, owner: LiveOwner | None, answer: Answer | None) -> Barrier:
        if isinstance(answer, FeedbackError):
            return answer
        if isinstance(answer, Flushed):
            view = self._logs.make_durable(session_id)
            return after_flush(view, 0 if view is None else view.events, answer)
        if owner is not None and must_flush(self._logs.inspect(session_id), owner):
            return FlushNeeded(owner)
        return self._logs.make_durable(session_id)
