"""A worker that asks agents: what it believes, what it does with failures, and that nobody else waits.

The agent is the test; `test_transcript`, `test_flush` and `test_agents` have real ones.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from app.diagnosis import Finding, diagnose
from barrier.process import run_agent
from feedback import (
    AgentUnanswered,
    CommandFailed,
    Delete,
    FeedbackClient,
    FlushFailed,
    HostUnknown,
    Item,
    LogCorrupt,
    LogUnreadable,
    Ok,
    Put,
    Rejected,
    keys,
)
from feedback.errors import SettingsInvalid
from feedback.evidence import (
    REPLY_MARK,
    EvidenceRequest,
    Found,
    LogAbsent,
    LogFailed,
    LogFound,
    LogQuestion,
    decode_reply,
    encode_request,
)
from feedback.failures import Failure, failure_of
from feedback.results import Result, SessionNotFound, TargetNotFound
from feedback.settings import Settings
from persistence.sidecar import open_store
from tests.harness import HOST, elsewhere, serving, settings_for, wait_until, write_session
from tests.integration.agent_stub import LIFE, AgentStub, rated
from tests.integration.rq_jobs import enqueue_by_rq, job_settings, put_command, set_up, stock_queue

pytestmark = pytest.mark.server

A, B = "host-a", "host-b"


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """Of a system that waits for the test, however slowly that runs."""
    return settings_for(valkey_url, tmp_path, logs="agents", agent_timeout=60, max_attempts=2)


@pytest.fixture
def agent(redis_client: Redis) -> AgentStub:
    return AgentStub(redis_client, A)


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with serving(settings), FeedbackClient.from_url(settings.redis_url, host=A) as client:
        yield client


def is_item(result: Result) -> bool:
    return isinstance(result, Ok) and isinstance(result.value, Item)


def test_several_sessions_are_asked_about_in_one_request(
    settings: Settings, redis_client: Redis, agent: AgentStub
) -> None:
    """What waited together; only of puts is it asked whether messages can be rated. Answers may come apart."""
    set_up(redis_client, settings)
    with FeedbackClient.from_url(settings.redis_url, host=A) as client:
        requests: list[Put | Delete] = [
            Put("s", "m1", "positive"),
            Put("s", "m2", "positive"),
            Put("t", "m", "positive"),
            Delete("u", "m"),
        ]
        tickets = client.submit_many(requests)
        with serving(settings, projector=False):
            asked = [agent.take()]
            while sum(len(one.sessions) for one in asked) < 3:
                asked.append(agent.take())
            questions = {question.session_id: question for request in asked for question in request.sessions}
            assert {key: (one.message_ids, one.durable) for key, one in questions.items()} == {
                "s": (("m1", "m2"), True),
                "t": (("m",), True),
                "u": ((), False),
            }
            for request in asked:
                for question in request.sessions:
                    agent.say(request, agent.reply(request, rated(request, question.session_id)))
            assert all(ticket.result().ok for ticket in tickets)
    assert len(asked) <= 2, "partitions that were claimed together are asked about together"


def test_a_reply_counts_only_for_what_was_asked_where_it_was_asked(client: FeedbackClient, agent: AgentStub) -> None:
    """Garbage, another root, host or request, too few answers: ignored. The true one then counts, once."""
    ticket = client.submit(Put("s", "m", "positive"))
    request = agent.take()
    absent = Found("s", LogAbsent())
    agent.say(
        request,
        REPLY_MARK + b"\xc1",
        agent.reply(request, absent, root="/other"),
        agent.reply(request, absent, host=B),
        agent.reply(request, absent, request_id="another"),
        agent.reply(request, Found("t", LogAbsent()), Found("s", LogFound(identity=LIFE))),
        agent.reply(request, rated(request, "s")),
        agent.reply(request, absent),
    )
    assert is_item(ticket.result())
    agent.say(request, agent.reply(request, absent))
    second = client.submit(Put("s", "m2", "positive"))
    late = agent.take()
    agent.tell(late, lambda session_id: rated(late, session_id).finding)
    assert is_item(second.result())


@pytest.mark.parametrize(
    ("told", "raised", "tries"),
    [
        (failure_of(LogCorrupt("s", "/p", "bad frame")), LogCorrupt, 1),
        (failure_of(LogUnreadable("s", "/p", "EIO")), LogUnreadable, 2),
        (failure_of(FlushFailed("disk full")), FlushFailed, 2),
        (Failure("Fenced", "I say so"), CommandFailed, 1),
        (Failure("SettingsInvalid", "x" * 100_000), CommandFailed, 1),
    ],
)
def test_failures_keep_their_class(
    client: FeedbackClient, agent: AgentStub, told: Failure, raised: type[Exception], tries: int
) -> None:
    """Final stays final, retryable is retried; what no barrier says is a failure of the command, and no more."""
    ticket = client.submit(Put("s", "m", "positive"))
    for _ in range(tries):
        agent.tell(agent.take(), lambda _: LogFailed(told))
    with pytest.raises(raised) as caught:
        ticket.result()
    assert len(str(caught.value)) < 10_000


def test_business_answers_are_the_contracts(client: FeedbackClient, agent: AgentStub) -> None:
    absent = client.submit(Put("s", "m", "positive"))
    agent.tell(agent.take(), lambda _: LogAbsent())
    assert absent.result() == Rejected(error=SessionNotFound(session_id="s"))
    vanished = client.submit(Put("s", "m", "positive"))
    agent.tell(agent.take(), lambda _: LogFound(identity=LIFE, eligible=(False,)))
    assert vanished.result() == Rejected(error=TargetNotFound(session_id="s", message_id="m"))


def test_an_absent_agent_is_told_at_once_and_a_silent_one_in_time_and_others_go_on(
    settings: Settings, agent: AgentStub
) -> None:
    """Bounded waits, retried; a late answer is not listened to."""
    impatient = msgspec.structs.replace(settings, agent_timeout=0.3, flush_timeout=0.2)
    with (
        serving(impatient),
        FeedbackClient.from_url(settings.redis_url, host=A) as client,
        FeedbackClient.from_url(settings.redis_url, host=B) as of_b,
    ):
        silent = client.submit(Put("s", "m", "positive"))
        request = agent.take()
        with pytest.raises(AgentUnanswered, match="host 'host-b': no agent is there"):
            of_b.put("neighbour", "m", "positive")
        with pytest.raises(AgentUnanswered, match="no agent is there"):
            of_b.list("neighbour")
        agent.take()
        agent.say(request, agent.reply(request, rated(request, "s")))
        with pytest.raises(AgentUnanswered, match="host 'host-a': no answer in time"):
            silent.result()
        with pytest.raises(AgentUnanswered, match="no answer in time"):
            client.list("s")


def test_who_names_no_host_is_told_what_to_set(settings: Settings, client: FeedbackClient) -> None:
    """At once, and for good: no retry finds the log."""
    with FeedbackClient.from_url(settings.redis_url) as nowhere:
        with pytest.raises(HostUnknown, match="FEEDBACK_HOST"):
            nowhere.put("s", "m", "positive")
        with pytest.raises(HostUnknown, match="FEEDBACK_HOST"):
            nowhere.list("s")


@pytest.mark.usefixtures("client")
def test_a_system_that_sees_no_logs_is_well(settings: Settings, tmp_path: Path) -> None:
    """Its projector answers whoever names no host, if only that: to the doctor that is a sign of life."""
    wait_until(lambda: Finding("projector", "answers") in diagnose(settings, tmp_path), "the projector is well")


def test_commands_of_one_session_that_name_several_hosts_are_judged_one_after_the_other(
    settings: Settings, redis_client: Redis, agent: AgentStub
) -> None:
    """In queue order, each by its own host; a worker that sees logs judges those itself."""
    other = AgentStub(redis_client, B)
    local = msgspec.structs.replace(settings, logs="local", host="own")
    write_session(local, "s", "m1", "m2", "m3")
    set_up(redis_client, local)
    tickets = []
    for number, host in enumerate((A, B, "own", None, A), start=1):
        with FeedbackClient.from_url(settings.redis_url, host=host) as client:
            tickets.append(client.submit(Put("s", f"m{number}", "positive")))
    with serving(local, projector=False), FeedbackClient.from_url(settings.redis_url) as client:
        results = []
        for one in (agent, other, agent):
            request = one.take()
            one.tell(request, lambda session_id, request=request: rated(request, session_id).finding)  # type: ignore[misc]
        results = [client.result_of(ticket.command_id) for ticket in tickets]
    assert [is_item(result) for result in results] == [True, True, True, False, True]
    assert results[3] == Rejected(error=TargetNotFound(session_id="s", message_id="m4"))
    assert [result.revision for result in results] == [1, 2, 3, 3, 4]


def test_a_stock_worker_asks_agents_as_well(
    settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command under RQ itself: it waits for the evidence where it runs, the commands before it included."""
    placed = elsewhere(settings)
    write_session(settings, "s", "m1", "m2")
    set_up(redis_client, placed.settings)
    queue = stock_queue(redis_client, placed.settings, "s", is_async=False)
    with serving(placed.settings, workers=0, projector=False, agents=placed.agents):
        wait_until(lambda: redis_client.exists(keys.agent(HOST)), "the agent serves")
        with job_settings(placed.settings, monkeypatch):
            for message_id in ("m1", "m2", "nope"):
                enqueue_by_rq(queue, put_command("s", message_id, host=HOST))
    with contextlib.closing(open_store(settings.sidecar_url)) as store:
        stored = store.feedback("s")
    assert stored is not None
    assert [item.message_id for item in stored.items] == ["m1", "m2"]


def test_agents_of_one_host_take_turns_and_share_a_root(
    settings: Settings, redis_client: Redis, tmp_path: Path
) -> None:
    """The second waits as a standby and serves when the first has gone; one of another root refuses to start."""
    own = msgspec.structs.replace(settings, logs="local", host=HOST)
    with serving(own, workers=0, projector=False, agents=(own,)):
        first = wait_until(lambda: redis_client.hget(keys.agent(HOST), "agent"), "one serves")
        stop = threading.Event()
        with pytest.raises(SettingsInvalid, match="give each log root a host name of its own"):
            run_agent(msgspec.structs.replace(own, sessions=str(tmp_path)), stop)
        with ThreadPoolExecutor(1) as threads:
            standby = threads.submit(run_agent, own, stop)
            wait_until(lambda: redis_client.hget(keys.agent(HOST), "agent") == first, "the first goes on")
            redis_client.delete(keys.agent(HOST))
            wait_until(lambda: redis_client.hget(keys.agent(HOST), "agent"), "a forgotten registration comes back")
            stop.set()
        standby.result()
    assert not redis_client.exists(keys.agent(HOST)), "who leaves says so"


def test_an_agent_survives_what_strangers_write(settings: Settings, redis_client: Redis) -> None:
    """Garbage for requests, requests for other hosts or past their deadline, and keys of another type."""
    own = msgspec.structs.replace(settings, logs="local", host=HOST)
    write_session(own, "s", "m")
    redis_client.set(keys.agent(HOST), "x")
    redis_client.set(keys.agent_requests(HOST), "x")
    placed = elsewhere(settings)
    with (
        serving(placed.settings, agents=placed.agents),
        FeedbackClient.from_url(settings.redis_url, host=HOST) as client,
    ):
        wait_until(lambda: redis_client.type(keys.agent(HOST)) == b"hash", "the agent serves")
        assert is_item(client.put("s", "m", "positive"))
        honest = EvidenceRequest(
            request_id="r", reply_to="me", host=HOST, deadline=2**52, sessions=(LogQuestion(session_id="s"),)
        )
        redis_client.rpush(keys.agent_requests(HOST), b"\xc1", b"\x80")
        others: list[dict[str, Any]] = [{"host": "another"}, {"deadline": 1}, {"sessions": honest.sessions * 300}, {}]
        for other in others:
            request = msgspec.structs.replace(honest, **other)
            redis_client.rpush(keys.agent_requests(HOST), encode_request(request))
        rung = wait_until(lambda: redis_client.lpop(keys.wake("me")), "the honest one is answered")
        assert isinstance(rung, bytes)
        (found,) = decode_reply(rung).sessions
        assert isinstance(found.finding, LogFound)
        assert (found.finding.identity, redis_client.llen(keys.wake("me"))) == (LIFE, 0), (
            "one answer, to the one request"
        )
