"""An agent that the test itself plays: it takes requests, and says whatever the test wants it to."""

from collections.abc import Callable

from redis import Redis

from feedback import keys
from feedback.evidence import EvidenceReply, EvidenceRequest, Finding, Found, LogFound, decode_request, encode_reply
from feedback.model import SessionIdentity
from tests.harness import CREATED_AT, wait_until

ROOT = "/logs"
LIFE = SessionIdentity(created_at=CREATED_AT, cwd="/w")


class AgentStub:
    """The registered agent of one host."""

    def __init__(self, redis: Redis, host: str) -> None:
        self._redis = redis
        self.host = host
        redis.hset(keys.agent(host), items=["agent", "stub", "root", ROOT])
        redis.pexpire(keys.agent(host), 60_000)

    def take(self) -> EvidenceRequest:
        """The next request, waited for."""
        taken = wait_until(lambda: self._redis.lpop(keys.agent_requests(self.host)), "somebody asks")
        assert isinstance(taken, bytes)
        return decode_request(taken)

    def reply(self, request: EvidenceRequest, *found: Found, **other: str) -> EvidenceReply:
        """About some of its Sessions; `other` members than an honest agent's."""
        members = {"request_id": request.request_id, "host": self.host, "agent_id": "stub", "root": ROOT} | other
        return EvidenceReply(sessions=found, **members)

    def say(self, request: EvidenceRequest, *rings: EvidenceReply | bytes) -> None:
        """Ring on the asker's wake list."""
        wake = keys.wake(request.reply_to)
        for ring in rings:
            self._redis.rpush(wake, ring if isinstance(ring, bytes) else encode_reply(ring))

    def tell(self, request: EvidenceRequest, finding: Callable[[str], Finding]) -> None:
        """Answer for all Sessions of a request."""
        found = [Found(question.session_id, finding(question.session_id)) for question in request.sessions]
        self.say(request, self.reply(request, *found))


def rated(request: EvidenceRequest, session_id: str, life: SessionIdentity = LIFE) -> Found:
    """All messages that were asked about in a Session can be rated."""
    (question,) = (one for one in request.sessions if one.session_id == session_id)
    return Found(session_id, LogFound(identity=life, eligible=(True,) * len(question.message_ids)))
