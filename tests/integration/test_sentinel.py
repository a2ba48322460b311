"""Servers behind Sentinels: everybody follows a failover, and what it lost is had again (FAULTS, R6 and R7)."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from feedback import (
    AsyncFeedbackClient,
    FeedbackClient,
    LiveSessions,
    Put,
    QueueUnavailable,
    Result,
    ResultTimeout,
    SessionIdentity,
    keys,
)
from feedback.connection import connect, connect_async, like
from feedback.settings import Settings
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.outcomes import assert_sound, published_events
from tests.sentinel import Watched, role, role_if_told, watched_servers

pytestmark = [pytest.mark.server, pytest.mark.process]

SESSIONS = ("a", "b")
MESSAGES = tuple(f"m{number}" for number in range(400))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watched_servers(tmp_path / "servers") as watched:
        yield watched


@pytest.fixture
def settings(watched: Watched, tmp_path: Path) -> Settings:
    settings = settings_for(watched.url, tmp_path, partitions=2, lease_ttl=1.0)
    for session_id in SESSIONS:
        write_session(settings, session_id, *MESSAGES)
    return settings


def put(session_id: str, message_id: str) -> Put:
    return Put(session_id, message_id, "positive", command_id=str(uuid4()))


def insist(send: Callable[[], Result]) -> Result:
    """As a host does: what had no answer is sent again by its id."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return send()
        except (QueueUnavailable, ResultTimeout):
            if time.monotonic() > give_up:
                raise


def is_found(watched: Watched) -> bool:
    """Whether the Sentinels name a server that is up."""
    with connect(watched.url) as redis:
        return role_if_told(redis) == "master"


def test_a_failover_under_load_is_followed_by_everybody(watched: Watched, settings: Settings) -> None:
    """Workers, projector and hosts, threads and asyncio: each command has one outcome, which its caller was told."""
    answered: list[str] = []
    over = threading.Event()

    def rate(session_id: str) -> int:
        with FeedbackClient.from_url(watched.url) as client:
            for message_id in MESSAGES:
                request = put(session_id, message_id)
                assert insist(lambda request=request: client.submit(request).result(2)).ok  # type: ignore[misc]
                answered.append(str(request.command_id))
                if over.is_set():
                    break
            return len(items_of(client.list(session_id, timeout=20)))

    async def also() -> None:
        async with AsyncFeedbackClient.from_url(watched.url) as client:
            request = put("b", MESSAGES[-1])
            assert (await (await client.submit(request)).result(20)).ok
            answered.append(str(request.command_id))
            assert items_of(await client.list("b", timeout=20))

    with (
        LiveSessions.from_url(watched.url, ttl=1.0) as live,
        serving(settings, workers=2),
        ThreadPoolExecutor(1) as threads,
    ):
        live.register("live", SessionIdentity(created_at=CREATED_AT), lambda: None)
        rating = threads.submit(rate, "a")
        wait_until(lambda: len(answered) > 5, "work goes on")
        watched.fail_over()
        before = len(answered)
        wait_until(lambda: len(answered) > before + 5, "work goes on at the new primary", 60)
        asyncio.run(also())
        over.set()
        assert rating.result() == len(answered) - 1
        with connect(watched.url) as redis, like(redis) as own:
            assert role(own) == "master"
            wait_until(lambda: redis.exists(keys.live("live")), "the live Session is registered there")
            wait_until(lambda: len(published_events(redis, settings)) == len(answered), "the streams are whole", 60)
            assert_sound(redis, settings, answered)


def test_what_a_failover_lost_is_detected_and_healed(
    watched: Watched, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers and events are had again from the store; what was only accepted is sent again by its host."""
    before, answered, accepted = put("a", "m1"), put("a", "m2"), put("b", "m1")
    with FeedbackClient.from_url(watched.url) as client:
        with serving(settings, projector=False):
            assert client.submit(before).result(20).ok
            wait_until(watched.is_ready, "the replica has it")
            watched.fall_behind()
            told = client.submit(answered).result(20)
            assert told.ok
        client.submit(accepted)
        watched.fail_over()
        with connect(watched.url) as redis:
            wait_until(lambda: is_found(watched), "the new primary is found")
            assert not redis.exists(keys.job(str(accepted.command_id))), "the failover lost what was accepted"
            assert len(published_events(redis, settings)) == 1, "the failover lost an event"
            with serving(settings):
                assert insist(lambda: client.submit(answered).result(2)) == told
                assert insist(lambda: client.submit(accepted).result(2)).ok
                ids = [str(request.command_id) for request in (before, answered, accepted)]
                wait_until(lambda: len(published_events(redis, settings)) == 3, "the streams are whole")
                assert_sound(redis, settings, ids)
                assert {item.message_id for item in items_of(client.list("a", at_least=told.revision))} == {"m1", "m2"}
    assert "publishing again" in caplog.text, "an operator is told that the server lost something"


def test_sentinels_out_of_reach_are_said_in_one_short_sentence() -> None:
    """Where they are and what is amiss, by all three clients, and nothing of the driver's insides or of a password."""
    url = "redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/feedback"
    said = "no Sentinel of 127.0.0.1:1, 127.0.0.1:2 names a primary 'feedback': connection refused or broken"

    async def ask() -> None:
        async with connect_async(url) as redis:
            await redis.ping()

    with connect(url) as redis:
        with pytest.raises(RedisConnectionError) as refused:
            redis.ping()
        with like(redis) as another, pytest.raises(RedisConnectionError) as refused_too:
            another.ping()
    with pytest.raises(RedisConnectionError) as refused_async:
        asyncio.run(ask())
    assert {str(refused.value), str(refused_too.value), str(refused_async.value)} == {said}
