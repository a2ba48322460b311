"""What is said between a host's agent and those who cannot see that host's Session logs (docs/agents.md).

An agent registers itself at `keys.agent(host)`, which expires when its heartbeat stops. Who needs to know about
Sessions on that host pushes an `EvidenceRequest` on `keys.agent_requests(host)`; the agent does the barrier there, and
pushes `EvidenceReply`s, behind the mark that tells them from other rings, on the wake list that the request names:
one or several, each about some of the Sessions. Decoding is strict and bounded: anybody may write to Redis.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct

from feedback.decoding import decoded
from feedback.errors import CommandFailed, FeedbackError, FlushFailed, FlushUnanswered, LogFailure
from feedback.failures import Failure, error_of
from feedback.model import SessionIdentity

REPLY_MARK = b"evidence:"
MOST_SESSIONS = 256
"""In one request."""
MOST_ID_CHARS = 2**20
"""Of the message ids that are asked about in one Session; one command's always fits."""
MOST_BYTES = 16 * 2**20
"""Bound on one encoded request or reply: what is larger is never decoded."""

_MOST_SAID = 4096


class Registration(Struct, frozen=True):
    """Who serves a host right now: an agent by its id, and the log root that it sees."""

    agent_id: str
    root: str


class LogQuestion(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """About one Session: its identity, and whether feedback may be bound to these messages.

    `durable`: its log is to be on stable storage before the answer (CONTRACT, "Rules of `put`", 5).
    """

    session_id: str
    message_ids: tuple[str, ...] = ()
    durable: bool = False


class EvidenceRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`reply_to` names the wake list that replies go to; `deadline` in milliseconds since the Unix epoch."""

    request_id: str
    reply_to: str
    host: str
    sessions: tuple[LogQuestion, ...]
    deadline: int


class LogFound(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="log"):
    """The Session is there: its log's identity (or its live owner's, of one that was never written).

    `eligible` answers for the message ids in the order of the question. `revision` says which state of the file was
    read: device, inode, size and times as its stat gave them, None where there is no file of this identity.
    """

    identity: SessionIdentity
    eligible: tuple[bool, ...] = ()
    revision: str | None = None


class LogAbsent(Struct, frozen=True, tag_field="type", tag="absent"):
    """There is no such Session."""


class LogFailed(Struct, frozen=True, tag_field="type", tag="failed"):
    """The barrier could not answer."""

    failure: Failure


Finding: TypeAlias = LogFound | LogAbsent | LogFailed


class Found(Struct, frozen=True, rename="camel"):
    """What was found of one Session."""

    session_id: str
    finding: Finding


class EvidenceReply(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Evidence for some of a request's Sessions, and who gives it."""

    request_id: str
    host: str
    agent_id: str
    root: str
    sessions: tuple[Found, ...]


class RemoteLog(Struct, frozen=True):
    """A Session's log as its host's agent found it, for the messages that were asked about."""

    identity: SessionIdentity
    asked: Mapping[str, bool]
    revision: str | None

    def eligible(self, message_id: str) -> bool:
        """Whether feedback may be bound to this message. KeyError for one that was not asked about."""
        return self.asked[message_id]


class Evidence(Struct, frozen=True):
    """An agent's word on one Session: its log, or None when there is no such Session."""

    host: str
    log: RemoteLog | None


def told(host: str, question: LogQuestion, finding: Finding) -> Evidence | FeedbackError | None:
    """What a finding says to who asked; None when it does not answer the question."""
    match finding:
        case LogAbsent():
            return Evidence(host, None)
        case LogFailed(failure=failure):
            return _error_of(host, failure)
        case LogFound():
            if len(finding.eligible) != len(question.message_ids):
                return None
            asked = dict(zip(question.message_ids, finding.eligible, strict=True))
            return Evidence(host, RemoteLog(finding.identity, asked, finding.revision))


def _error_of(host: str, failure: Failure) -> FeedbackError:
    """The typed failure, its class kept; of a kind that no barrier has, only its words. Cut: it goes on to callers."""
    cut = {name: value[:_MOST_SAID] if isinstance(value, str) else value for name, value in failure.members.items()}
    failure = Failure(failure.code[:_MOST_SAID], failure.message[:_MOST_SAID], cut)
    error = error_of(failure)
    if isinstance(error, LogFailure | FlushUnanswered | FlushFailed | CommandFailed):
        return error
    return CommandFailed(f"the agent of {host} met {failure.code}: {failure.message}")


_requests = msgspec.msgpack.Decoder(EvidenceRequest)
_replies = msgspec.msgpack.Decoder(EvidenceReply)


def encode_request(request: EvidenceRequest) -> bytes:
    return msgspec.msgpack.encode(request)


def decode_request(data: bytes) -> EvidenceRequest:
    """Raises `msgspec.MsgspecError` for anything that is not a request, or one that asks for too much."""
    request = decoded(_requests, _bounded(data))
    if len(request.sessions) > MOST_SESSIONS:
        raise msgspec.ValidationError(f"asks about {len(request.sessions)} Sessions")
    return request


def encode_reply(reply: EvidenceReply) -> bytes:
    """Ready to be pushed on a wake list."""
    return REPLY_MARK + msgspec.msgpack.encode(reply)


def decode_reply(ring: bytes) -> EvidenceReply:
    """Raises `msgspec.MsgspecError` for anything that is not a reply behind its mark."""
    return decoded(_replies, _bounded(ring).removeprefix(REPLY_MARK))


def _bounded(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise msgspec.ValidationError(f"{len(data)} bytes")
    return data
