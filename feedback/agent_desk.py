"""Asking the agents of hosts: for workers, which need the barrier, and projectors, which need identities."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.connection import BLOCK_S
from feedback.errors import AgentUnanswered, FeedbackError
from feedback.evidence import (
    MOST_SESSIONS,
    REPLY_MARK,
    Evidence,
    EvidenceReply,
    EvidenceRequest,
    LogFound,
    LogQuestion,
    Registration,
    decode_reply,
    encode_request,
    told,
)
from feedback.scripting import Script

logger = logging.getLogger(__name__)

_ask = Script("feedback", "agent_ask")

MOST_REQUESTS = 10_000
"""Requests that may wait for one host's agent; the oldest, whose askers wait no more or ask again, make room."""
_CHUNK_BYTES = 4 * 2**20

Testimony: TypeAlias = Evidence | FeedbackError
"""What came of a question about one Session."""


class Asked(Struct, frozen=True):
    """One request that went out (`absent`: it did not, the host has no agent), and until when its replies count."""

    request_id: str
    host: str
    session_ids: tuple[str, ...]
    until_s: float
    absent: bool


class Told(Struct, frozen=True):
    """An agent's answer for one Session of one request."""

    request_id: str
    session_id: str
    testimony: Testimony


class _Pending(Struct, frozen=True):
    host: str
    agent: Registration
    questions: dict[str, LogQuestion]
    """Those that are not answered yet, by Session id."""
    until_s: float


class AgentDesk:
    """Asks in one process's name; the replies come in on its wake list. For one thread at a time.

    A reply counts once, for the request that it answers, as long as that is waited for, and from the host and the log
    root that were asked. Times are monotonic seconds.
    """

    def __init__(self, redis: Redis, reply_to: str, timeout_s: float) -> None:
        """`reply_to` names the wake list, which the caller reads; `timeout_s` is how long an answer is waited for."""
        self._redis = redis
        self._reply_to = reply_to
        self._timeout_s = timeout_s
        self._pending: dict[str, _Pending] = {}

    def request(self, questions: Mapping[str, Sequence[LogQuestion]]) -> list[Asked]:
        """Ask the agent of each host, in one round trip: one request each for as many Sessions as fit in one.

        Raises:
            RedisError: some may have been asked; asking again is harmless.
        """
        self._forget()
        requests = [self._request(host, some) for host, all_ in questions.items() for some in _chunks(all_)]
        if not requests:
            return []
        names = [key for one in requests for key in (keys.agent(one.host), keys.agent_requests(one.host))]
        replies = _ask(self._redis, names, (keys.REPLY_TTL_S, MOST_REQUESTS, *map(encode_request, requests)))
        until_s = time.monotonic() + self._timeout_s
        asked: list[Asked] = []
        for request, reply in zip(requests, replies, strict=True):
            agent = None if reply is None else registration_from(reply)
            session_ids = tuple(question.session_id for question in request.sessions)
            asked.append(Asked(request.request_id, request.host, session_ids, until_s, absent=agent is None))
            if agent is not None:
                by_session = {question.session_id: question for question in request.sessions}
                self._pending[request.request_id] = _Pending(request.host, agent, by_session, until_s)
        return asked

    def told(self, ring: bytes) -> list[Told]:
        """What a ring on the wake list says that is waited for; nothing when it is no agent's reply to us."""
        if not ring.startswith(REPLY_MARK):
            return []
        try:
            reply = decode_reply(ring)
        except msgspec.MsgspecError as error:
            logger.warning("malformed evidence dropped: %s", error)
            return []
        pending = self._pending.get(reply.request_id)
        if pending is None or pending.until_s <= time.monotonic():
            return []
        if (reply.host, reply.root) != (pending.host, pending.agent.root):
            logger.warning("evidence of another host or root dropped host=%s root=%r", reply.host, reply.root)
            return []
        return list(self._answered(reply, pending))

    def ask(self, questions: Mapping[str, Sequence[LogQuestion]]) -> dict[str, Testimony]:
        """Ask, and wait for all answers as long as they count; what came of it, by Session id.

        Other rings on the wake list are lost on the way: only for who has no loop.

        Raises:
            RedisError: asking again is harmless.
        """
        asked = self.request(questions)
        outcomes: dict[str, Testimony] = {
            session_id: unanswered(one) for one in asked for session_id in one.session_ids
        }
        until_s = max((one.until_s for one in asked), default=0.0)
        while self._pending and (left_s := until_s - time.monotonic()) > 0:
            rung = self._redis.blpop([keys.wake(self._reply_to)], timeout=min(BLOCK_S, max(0.01, left_s)))
            if rung is not None and isinstance(rung[1], bytes):
                outcomes |= {one.session_id: one.testimony for one in self.told(rung[1])}
        return outcomes

    def _request(self, host: str, questions: Sequence[LogQuestion]) -> EvidenceRequest:
        # The agent's clock may be another one; a reply that comes too late is not waited for anyway.
        deadline = wall_clock_ms() + int(1000 * (self._timeout_s + keys.REPLY_TTL_S))
        return EvidenceRequest(
            request_id=uuid4().hex,
            reply_to=self._reply_to,
            host=host,
            sessions=tuple(questions),
            deadline=deadline,
        )

    def _answered(self, reply: EvidenceReply, pending: _Pending) -> Iterator[Told]:
        for found in reply.sessions:
            question = pending.questions.get(found.session_id)
            testimony = None if question is None else told(pending.host, question, found.finding)
            if testimony is not None:
                del pending.questions[found.session_id]
                if isinstance(found.finding, LogFound):
                    # Which state of the file was read: for those who have to find out afterwards.
                    logger.debug(
                        "evidence session=%r host=%s revision=%s",
                        found.session_id,
                        pending.host,
                        found.finding.revision,
                    )
                yield Told(reply.request_id, found.session_id, testimony)
        if not pending.questions:
            del self._pending[reply.request_id]

    def _forget(self) -> None:
        now = time.monotonic()
        self._pending = {key: pending for key, pending in self._pending.items() if pending.until_s > now}


def unanswered(asked: Asked) -> AgentUnanswered:
    """What comes of a request that nobody answered, or that had nobody to answer it."""
    if asked.absent:
        return AgentUnanswered(asked.host, "no agent is there; start `feedback agent` where the logs are")
    return AgentUnanswered(asked.host, "no answer in time")


def registration_from(reply: Sequence[bytes]) -> Registration | None:
    """A registration as it stands in Redis; None when what stands there (anybody may write it) is not one."""
    agent_id, root = reply
    try:
        return Registration(agent_id.decode(), root.decode())
    except UnicodeDecodeError:
        return None


def _chunks(questions: Iterable[LogQuestion]) -> Iterator[Sequence[LogQuestion]]:
    """Slices in order, each small enough for one request."""
    some: list[LogQuestion] = []
    size = 0
    for question in questions:
        grown = _size(question)
        if some and (len(some) == MOST_SESSIONS or size + grown > _CHUNK_BYTES):
            yield some
            some, size = [], 0
        some.append(question)
        size += grown
    if some:
        yield some


def _size(question: LogQuestion) -> int:
    """At most so many bytes on the wire, roughly: four for each character."""
    return 4 * (len(question.session_id) + sum(map(len, question.message_ids)))
