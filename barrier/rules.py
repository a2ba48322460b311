"""What a Session's live owner changes in the barrier's answer (pure; CONTRACT, "Rules of `put`", 3 to 5)."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from msgspec import Struct

from feedback.errors import Disposition, FeedbackError, FlushFailed, FlushUnanswered
from feedback.evidence import Evidence
from feedback.flushing import FlushReply, LiveOwner
from feedback.model import SessionIdentity


class DurableLog(Protocol):
    """What the barrier found in a Session's log, and put on stable storage where a put depends on it."""

    @property
    def identity(self) -> SessionIdentity:
        """The header's identity."""
        ...

    def eligible(self, message_id: str) -> bool:
        """Whether feedback may be bound to this message."""
        ...


Barrier: TypeAlias = DurableLog | FeedbackError | None
"""The barrier's answer for a Session: its log, the failure to get it, or None when there is no such Session."""


class FlushNeeded(FeedbackError):
    """The Session's live owner has to flush before its log can be judged. Never leaves the worker."""

    disposition = Disposition.RETRYABLE

    def __init__(self, owner: LiveOwner) -> None:
        super().__init__(f"Session {owner.session_id!r} waits for a flush by {owner.owner_id}")
        self.owner = owner


class Flushed(Struct, frozen=True):
    """An owner says that it flushed: under this identity, so many events (None: it does not count them)."""

    identity: SessionIdentity
    durable: int | None


FlushOutcome: TypeAlias = Flushed | FeedbackError

Answer: TypeAlias = Flushed | Evidence | FeedbackError
"""What came of what was asked for a Session's commands: of its live owner, or of its host's agent."""


class Need(Struct, frozen=True, kw_only=True):
    """What the barrier is asked about one Session: whether its log must be durable, and what is known about it."""

    durable: bool
    host: str | None = None
    """Where its log lies, as the commands say."""
    owner: LiveOwner | None = None
    """Who holds it open."""
    answer: Answer | None = None
    """What its owner or its host's agent answered to these commands."""


class DurabilityBarrier(Protocol):
    """Sees to it that feedback never precedes its message on stable storage (CONTRACT, "Rules of `put`", 5)."""

    def check(self, needs: Mapping[str, Need]) -> Mapping[str, Barrier]:
        """The answer for each Session id; a failure that never leaves the worker where somebody must be asked first."""
        ...


class Unrated(Struct, frozen=True):
    """A Session in which no message can be rated: live but without a log, or with a log of another life."""

    identity: SessionIdentity

    def eligible(self, message_id: str) -> bool:
        del message_id
        return False


def outcome_of(reply: FlushReply, owner: LiveOwner) -> FlushOutcome:
    """What an owner's reply comes to."""
    match reply.status:
        case "flushed":
            return Flushed(owner.identity, reply.durable)
        case "failed":
            return FlushFailed(f"the live owner of Session {owner.session_id!r} could not flush: {reply.reason}")
        case "detached":
            # The next try looks anew who holds it, if anybody does.
            return FlushUnanswered(f"the live owner of Session {owner.session_id!r} let go of it while it was asked")


def unanswered(owner: LiveOwner) -> FlushUnanswered:
    """What comes of a flush that was asked for in vain."""
    return FlushUnanswered(f"the live owner of Session {owner.session_id!r} did not answer a flush request in time")


def must_flush(log: DurableLog | None, owner: LiveOwner) -> bool:
    """Whether the owner writes the log that stands there, or one that does not stand there yet."""
    return log is None or log.identity == owner.identity


def after_flush(log: DurableLog | None, events: int, flushed: Flushed) -> Barrier:
    """Judge what was physically read after a flush: the owner's word alone never counts."""
    if log is None or log.identity != flushed.identity:
        return Unrated(flushed.identity)
    if flushed.durable is not None and events < flushed.durable:
        return FlushFailed(f"the owner says that {flushed.durable} events are durable, the log holds {events}")
    return log
