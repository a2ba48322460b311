"""The durability barrier: feedback never precedes its message on stable storage (CONTRACT, "Rules of `put`", 5)."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from feedback.errors import FeedbackError
from persistence.session_log import LogView, SessionLogs
from worker.core.rules import Barrier


class LogBarrier:
    """Reads Session logs, and puts them on stable storage where a put depends on it.

    A log that did not change since it was last read costs a stat, in the caller's thread. Several that
    did are read and fsynced side by side.
    """

    def __init__(self, logs: SessionLogs, threads: int) -> None:
        self._logs = logs
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="barrier")

    def check(self, sessions: Mapping[str, bool]) -> dict[str, Barrier]:
        """The barrier's answer for each Session id; True means that its log must be durable."""
        answers: dict[str, Barrier] = {}
        grown = []
        for session_id, durable in sessions.items():
            if self._logs.peek(session_id) is None:
                grown.append(session_id)
            else:
                answers[session_id] = self._answer(session_id, durable=durable)
        if len(grown) == 1:
            answers[grown[0]] = self._answer(grown[0], durable=sessions[grown[0]])
        else:
            reading: dict[str, Future[Barrier]] = {
                session_id: self._pool.submit(self._answer, session_id, durable=sessions[session_id])
                for session_id in grown
            }
            answers |= {session_id: future.result() for session_id, future in reading.items()}
        return answers

    def close(self) -> None:
        """Wait for readings under way and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, session_id: str, *, durable: bool) -> Barrier:
        try:
            view: LogView | None = self._logs.make_durable(session_id) if durable else self._logs.inspect(session_id)
        except FeedbackError as error:
            return error
        return view
