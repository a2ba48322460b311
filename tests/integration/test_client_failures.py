"""What both clients say when there is no answer, on a real server: each failure is its type."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from feedback import (
    AsyncFeedbackClient,
    CommandExpired,
    CommandIdReused,
    CommandUnknown,
    FeedbackClient,
    InvalidRequest,
    Put,
    QueueFull,
    QueueUnavailable,
    ShuttingDown,
    keys,
)
from feedback.partitions import Topology
from feedback.settings import Settings
from tests.integration.rating import forget, item_of, items_of

pytestmark = pytest.mark.server


def test_an_unknown_command_is_said(system: Settings) -> None:
    """Neither waiting nor recorded."""
    with FeedbackClient.from_url(system.redis_url) as client:
        with pytest.raises(CommandUnknown):
            client.result_of(str(uuid4()))
        with pytest.raises(InvalidRequest):
            client.result_of("*")


def test_an_id_is_not_used_twice(system: Settings, redis_client: Redis) -> None:
    """With another payload it is refused: at once while the job is there, by the worker when it is gone."""
    command_id = str(uuid4())
    with FeedbackClient.from_url(system.redis_url) as client:
        first = client.put("s", "m1", "positive", command_id=command_id)
        with pytest.raises(CommandIdReused):
            client.submit(Put("s", "m1", "negative", command_id=command_id))
        good, reused = client.submit_many(
            [Put("s", "m2", "positive"), Put("s", "m3", "positive", command_id=command_id)]
        )
        assert item_of(good.result()).message_id == "m2"
        with pytest.raises(CommandIdReused):
            reused.result()
        forget(redis_client, command_id)
        with pytest.raises(CommandIdReused):
            client.put("s", "m1", "negative", command_id=command_id)
        assert items_of(client.list("s"))[0] == item_of(first)
        assert client.result_of(command_id) == first, "the refusal hides the answer to the first use"


def test_an_expired_command_is_never_applied(system: Settings) -> None:
    """And says so; a new id is free to try."""
    past = time.time_ns() // 1_000_000 - 1000
    with FeedbackClient.from_url(system.redis_url) as client:
        with pytest.raises(CommandExpired):
            client.put("s", "m1", "positive", expires_at=past)
        assert items_of(client.list("s")) == ()
        assert item_of(client.put("s", "m1", "positive")).message_id == "m1"


def test_a_full_queue_refuses(idle: Redis, valkey_url: str) -> None:
    """Past `max_queued` of a partition; what was enqueued before stays, and sending that again is no refusal."""
    with FeedbackClient.from_url(valkey_url, max_queued=2) as client:
        requests = [Put("s", f"m{number}", "positive", command_id=uuid4()) for number in range(3)]
        tickets = client.submit_many(requests)
        with pytest.raises(QueueFull):
            tickets[2].result()
        with pytest.raises(QueueFull):
            client.submit(Put("s", "m", "positive"))
        assert client.submit(requests[0]).command_id == tickets[0].command_id
        partition = Topology(generation=1, partitions=4, max_note_bytes=1).partition_of("s")
        queued = idle.lrange(keys.queue(partition), 0, -1)
        assert queued == [ticket.command_id.encode() for ticket in tickets[:2]]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, None, "1"])
def test_a_malformed_timeout_sends_nothing(redis_client: Redis, valkey_url: str, timeout: Any) -> None:
    """By any operation."""
    with FeedbackClient.from_url(valkey_url) as client:
        calls: list[Callable[[], object]] = [
            lambda: client.put("s", "m", "positive", timeout=timeout),
            lambda: client.delete("s", "m", if_version=None, timeout=timeout),
            lambda: client.list("s", timeout=timeout),
            lambda: client.result_of(str(uuid4()), timeout=timeout),
            lambda: client.submit(Put("s", "m", "positive"), timeout=timeout),
        ]
        for call in calls:
            with pytest.raises(InvalidRequest):
                call()
    assert redis_client.dbsize() == 0


def test_a_url_that_nobody_answers_is_said(valkey_url: str) -> None:
    """Early, by both clients; and what is no URL is said at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}"
    with FeedbackClient.from_url(url) as client, pytest.raises(QueueUnavailable):
        client.put("s", "m", "positive", timeout=60)

    async def ask() -> None:
        async with AsyncFeedbackClient.from_url(url) as client:
            with pytest.raises(QueueUnavailable):
                await client.list("s", timeout=60)

    asyncio.run(ask())
    for make in (FeedbackClient.from_url, AsyncFeedbackClient.from_url):
        with pytest.raises(QueueUnavailable):
            make("http://127.0.0.1")


def test_a_server_that_was_never_set_up_is_said(redis_client: Redis, valkey_url: str) -> None:
    """Nothing was enqueued; the message tells what to start."""
    with FeedbackClient.from_url(valkey_url) as client:
        with pytest.raises(QueueUnavailable, match="feedback worker"):
            client.put("s", "m", "positive", timeout=0.2)
        assert redis_client.dbsize() == 0
        with pytest.raises(QueueUnavailable, match="feedback projector"):
            client.list("s", timeout=0.2)


def test_a_closed_client_takes_no_more_work(idle: Redis, valkey_url: str) -> None:
    """Every operation says so, and so do its tickets."""
    client = FeedbackClient.from_url(valkey_url)
    with client:
        ticket = client.submit(Put("s", "m", "positive"))
    calls: list[Callable[[], object]] = [
        lambda: client.put("s", "m", "positive"),
        lambda: client.delete("s", "m", if_version=None),
        lambda: client.list("s"),
        lambda: client.result_of(ticket.command_id),
        lambda: client.submit(Put("s", "m", "positive")),
        lambda: client.submit_many([]),
        ticket.result,
    ]
    for call in calls:
        with pytest.raises(ShuttingDown):
            call()
    client.close()


def test_a_closed_async_client_takes_no_more_work(idle: Redis, valkey_url: str) -> None:
    """As above."""

    async def use() -> None:
        client = AsyncFeedbackClient.from_url(valkey_url)
        async with client:
            ticket = await client.submit(Put("s", "m", "positive"))
        for call in (client.list("s"), client.put("s", "m", "positive"), ticket.result(), client.submit_many([])):
            with pytest.raises(ShuttingDown):
                await call

    asyncio.run(use())
