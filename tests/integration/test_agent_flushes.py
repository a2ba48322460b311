"""An agent whose Sessions' owners answer together: the test plays the owners and who asks; the logs are real."""

from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from barrier.agent import Agent, new_agent
from barrier.judging import Judge
from barrier.logs import LogBarrier
from barrier.timing import TimedBarrier
from feedback import keys
from feedback.evidence import EvidenceRequest, LogFound, LogQuestion, decode_reply, encode_request
from feedback.flushing import FlushReply, decode_request, encode_reply
from persistence.session_log import SessionLogs
from tests.harness import CREATED_AT, HOST, settings_for, write_session

pytestmark = pytest.mark.server

SESSIONS = ("a", "b", "c")


def request_of(name: str, *session_ids: str) -> bytes:
    questions = tuple(LogQuestion(session_id=one, message_ids=("m",), durable=True) for one in session_ids)
    return encode_request(
        EvidenceRequest(request_id=name, reply_to=name, host=HOST, sessions=questions, deadline=2**52)
    )


def rings(redis: Redis, name: str) -> list[bytes]:
    return [one for one in redis.lrange(name, 0, -1) if isinstance(one, bytes)]


def answered(redis: Redis, name: str) -> dict[str, tuple[bool, ...]]:
    """What somebody who asked was told, by Session."""
    replies = [decode_reply(ring) for ring in rings(redis, keys.wake(name))]
    found = [(one.session_id, one.finding) for reply in replies for one in reply.sessions]
    return {session_id: finding.eligible for session_id, finding in found if isinstance(finding, LogFound)}


def test_owners_that_answer_together_are_judged_side_by_side(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """A log that is slow to be read is waited for once, not once for each of them; and of two that asked about the
    same Session each gets its answer."""
    settings = settings_for(valkey_url, tmp_path)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m")
        live = ["owner", "o", "session", session_id, "created_at", str(CREATED_AT), "cwd", "/w"]
        redis_client.hset(keys.live(session_id), items=live)
    redis_client.set(keys.owner("o"), "alive")
    me = new_agent(HOST, settings.sessions)
    looks: list[int] = []
    with LogBarrier(SessionLogs(Path(settings.sessions)), 4) as barrier:
        judge = Judge(TimedBarrier(barrier, lambda _, sessions: looks.append(sessions)))
        with closing(Agent(redis_client, HOST, me, judge, flush_timeout_s=600)) as agent:
            requests = request_of("first", *SESSIONS), request_of("second", "a")
            redis_client.rpush(keys.agent_requests(HOST), *requests)
            agent.step(1)
            assert looks == [3, 1], "nobody is judged before the owners were asked"
            asked = [decode_request(one) for one in rings(redis_client, keys.flushes("o"))]
            assert {one.worker_id for one in asked} == {me.agent_id}
            flushed = [encode_reply(FlushReply(request_id=one.request_id, status="flushed")) for one in asked]
            redis_client.rpush(keys.wake(me.agent_id), *flushed)
            agent.step(1)
            agent.flush()
    assert looks[2:] == [3, 1]
    assert answered(redis_client, "first") == dict.fromkeys(SESSIONS, (True,))
    assert answered(redis_client, "second") == {"a": (True,)}
