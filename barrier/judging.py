"""What an agent says about Sessions, from what the barrier found in their logs."""

import logging
from collections.abc import Mapping

import msgspec

from barrier.rules import Barrier, DurabilityBarrier, FlushNeeded, Need
from feedback.errors import CommandFailed, FeedbackError, RowInvalid
from feedback.evidence import Finding, LogAbsent, LogFailed, LogFound, LogQuestion
from feedback.failures import failure_of
from persistence.session_log import LogView

logger = logging.getLogger(__name__)

_MOST_BYTES = 2 * 2**20


class Judge:
    """Answers questions by the barrier of one log root."""

    def __init__(self, barrier: DurabilityBarrier) -> None:
        self._barrier = barrier

    def judged(self, asked: Mapping[str, tuple[LogQuestion, Need]]) -> dict[str, Finding | FlushNeeded]:
        """What is found, by Session id; `FlushNeeded` where a live owner has to flush first."""
        answers = self._answers({session_id: need for session_id, (_, need) in asked.items()})
        return {session_id: _finding(question, answers[session_id]) for session_id, (question, _) in asked.items()}

    def _answers(self, needs: Mapping[str, Need]) -> Mapping[str, Barrier]:
        """The barrier's answers. A Session that breaks it unexpectedly is isolated, and fails by itself."""
        try:
            return self._barrier.check(needs)
        except Exception as error:
            if len(needs) > 1:
                return {key: self._answers({key: need})[key] for key, need in needs.items()}
            (session_id,) = needs
            logger.exception("a Session broke the barrier session=%r", session_id)
            return {session_id: CommandFailed(f"the agent broke on it: {type(error).__name__}: {error}")}


def _finding(question: LogQuestion, answer: Barrier) -> Finding | FlushNeeded:
    if isinstance(answer, FlushNeeded):
        return answer
    if isinstance(answer, FeedbackError):
        return LogFailed(failure_of(answer))
    if answer is None:
        return LogAbsent()
    found = LogFound(
        identity=answer.identity,
        eligible=tuple(answer.eligible(message_id) for message_id in question.message_ids),
        revision=".".join(map(str, answer.revision)) if isinstance(answer, LogView) else None,
    )
    if len(msgspec.msgpack.encode(found)) > _MOST_BYTES:
        # A working directory of megabytes is none, and nobody would take such an answer.
        return LogFailed(failure_of(RowInvalid(question.session_id, "", "its header is too large to be told")))
    return found
