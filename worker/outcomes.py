"""What became of a command, in one word: for metrics and spans."""

from feedback.errors import CommandExpired
from feedback.events import FeedbackDeleted, FeedbackPut, FeedbackRejected, FeedbackUnchanged
from feedback.results import VersionConflict
from worker.claims import Ending, Failed

OUTCOMES = ("put", "deleted", "unchanged", "conflict", "rejected", "expired", "failed", "gone")


def outcome_of(ending: Ending) -> str:
    """One of `OUTCOMES`."""
    if ending is None:
        return "gone"
    if isinstance(ending, Failed):
        return "expired" if ending.failure.code == CommandExpired.__name__ else "failed"
    match ending.event:
        case FeedbackPut():
            return "put"
        case FeedbackDeleted():
            return "deleted"
        case FeedbackUnchanged():
            return "unchanged"
        case FeedbackRejected(error=error):
            return "conflict" if isinstance(error, VersionConflict) else "rejected"
