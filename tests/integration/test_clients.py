"""Both clients against a real server, with a worker and a projector of the real code."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from redis import Redis
from redis import asyncio as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from feedback import (
    Absent,
    AsyncFeedbackClient,
    Delete,
    FeedbackClient,
    InvalidRequest,
    NoteTooLarge,
    Ok,
    Put,
    Rejected,
    Result,
    ResultTimeout,
    SessionNotFound,
    VersionConflict,
    keys,
)
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import MESSAGES, forget, item_of, items_of

pytestmark = pytest.mark.server


def test_the_life_of_a_rating(system: Settings) -> None:
    """Put, update, conflict, no-op, list, delete: results are values, and lists read one's own writes."""
    with FeedbackClient.from_url(system.redis_url) as client:
        created = client.put("s", "m1", "positive", note=" né ")
        first = item_of(created)
        assert (first.note, created.revision) == (" né ", 1)
        assert client.put("s", "m1", "negative") == Rejected(error=VersionConflict(current=first))
        updated = client.put("s", "m1", "negative", if_version=first.version)
        second = item_of(updated)
        assert (second.note, second.created_at, updated.revision) == (None, first.created_at, 2)
        unchanged = client.put("s", "m1", "negative", if_version=second.version)
        assert (item_of(unchanged), unchanged.revision) == (second, 2)
        assert items_of(client.list("s", at_least=updated.revision)) == (second,)
        removed = client.delete("s", "m1", if_version=second.version)
        assert (removed, removed.revision) == (Ok(value=Absent()), 3)
        assert client.delete("s", "m1", if_version=None) == Ok(value=Absent())
        assert items_of(client.list("s", at_least=3)) == ()
        assert client.list("nowhere") == Rejected(error=SessionNotFound(session_id="nowhere"))
        large = client.put("s", "m1", "positive", note="x" * 8193)
        assert large == Rejected(error=NoteTooLarge(max_bytes=8192, actual_bytes=8193))


def test_the_life_of_a_rating_on_asyncio(system: Settings) -> None:
    """The same calls, awaited."""

    async def life() -> None:
        async with AsyncFeedbackClient.from_url(system.redis_url) as client:
            created = await client.put("s", "m1", "positive")
            assert items_of(await client.list("s", at_least=created.revision)) == (item_of(created),)
            ticket = await client.submit(Delete("s", "m1", item_of(created).version))
            assert await ticket.result() == Ok(value=Absent())
            assert await client.result_of(ticket.command_id) == Ok(value=Absent())
            many = await client.submit_many([Put("s", name, "positive") for name in MESSAGES[:3]])
            assert [item_of(await one.result()).message_id for one in many] == list(MESSAGES[:3])
            assert await client.delete("s", "m9", if_version=None) == Ok(value=Absent())
            with pytest.raises(InvalidRequest):
                await client.put("s", "m1", "good")  # type: ignore[arg-type] # what an untyped caller may pass

    asyncio.run(life())


def test_submitted_commands_are_applied_in_order(system: Settings) -> None:
    """Of one Session; each has its own answer, whoever asks and in whatever order."""
    with FeedbackClient.from_url(system.redis_url) as client:
        tickets = client.submit_many(Put("s", name, "positive") for name in MESSAGES)
        answers = [ticket.result() for ticket in reversed(tickets)]
        assert [answer.revision for answer in answers] == list(range(len(MESSAGES), 0, -1))
        assert [item.message_id for item in items_of(client.list("s", at_least=len(MESSAGES)))] == list(MESSAGES)
        with FeedbackClient.from_url(system.redis_url) as another:
            assert another.result_of(tickets[3].command_id) == tickets[3].result()


OPTIONS: dict[str, dict[str, Any]] = {
    "decoded answers": {"decode_responses": True},
    "RESP3": {"protocol": 3},
    "RESP3, decoded answers": {"protocol": 3, "decode_responses": True},
    "RESP2": {"protocol": 2},
    "small socket timeout": {"socket_timeout": 0.01},
    "no socket timeout": {"socket_timeout": None},
    "health checks": {"health_check_interval": 1},
    "one connection": {"single_connection_client": True},
}


def test_a_client_can_be_made_of_any_redis_client(system: Settings, redis_client: Redis) -> None:
    """However that one is configured; it stays its owner's, and closing ours leaves no connection behind."""
    retrying: dict[str, Any] = {"retry": Retry(ExponentialBackoff(), 3)}
    for message_id, (name, options) in zip(MESSAGES, OPTIONS.items(), strict=False):
        with Redis.from_url(system.redis_url, client_name=message_id, **options, **retrying) as theirs:
            theirs.ping()
            with FeedbackClient(theirs) as client:
                result = client.put("s", message_id, "positive", note=name)
                assert items_of(client.list("s", at_least=result.revision))[-1] == item_of(result), name
                assert connections(redis_client, message_id) > 1, name
            assert connections(redis_client, message_id) == 1, name
            assert theirs.ping(), name


def test_an_async_client_can_be_made_of_any_redis_client(system: Settings, redis_client: Redis) -> None:
    """As above, for asyncio."""
    retrying: dict[str, Any] = {"retry": AsyncRetry(ExponentialBackoff(), 3)}

    async def use(message_id: str, name: str) -> None:
        async with aio.Redis.from_url(system.redis_url, client_name=message_id, **OPTIONS[name], **retrying) as theirs:
            await theirs.ping()
            async with AsyncFeedbackClient(theirs) as client:
                result = await client.put("s", message_id, "positive", note=name)
                assert items_of(await client.list("s", at_least=result.revision))[-1] == item_of(result), name
                assert connections(redis_client, message_id) > 1, name
            assert connections(redis_client, message_id) == 1, name
            assert await theirs.ping(), name

    for message_id, name in zip(MESSAGES, OPTIONS, strict=False):
        asyncio.run(use(message_id, name))


def connections(redis: Redis, name: str) -> int:
    """The connections of that name, as the server sees them; those that are being closed may take a moment."""

    def seen() -> list[Any]:
        return [one for one in redis.client_list() if one["name"] == name]

    wait_until(lambda: all(one["flags"] == "N" for one in seen()), "no connection is closing")
    return len(seen())


def test_waiting_asks_the_server_a_handful_of_times(idle: Redis, valkey_url: str) -> None:
    """It blocks on the server, it does not poll."""
    with FeedbackClient.from_url(valkey_url) as client:
        ticket = client.submit(Put("s", "m", "positive"))
        idle.config_resetstat()
        with pytest.raises(ResultTimeout) as caught:
            ticket.result(timeout=1)
    assert caught.value.command_id == ticket.command_id
    statistics = idle.info("commandstats")
    calls = sum(one["calls"] for name, one in statistics.items() if name.startswith("cmdstat_"))
    assert calls <= 8
    assert statistics["cmdstat_xread"]["calls"] <= 2


def test_a_command_that_nobody_serves_waits_for_its_worker(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """Enqueued while none runs, answered when one does; a timeout in between loses nothing."""
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", "m1")
    with FeedbackClient.from_url(valkey_url) as client:
        with serving(settings):
            wait_until(lambda: redis_client.exists(keys.TOPOLOGY), "a worker set the server up")
        ticket = client.submit(Put("s", "m1", "positive"))
        with pytest.raises(ResultTimeout):
            ticket.result(timeout=0)
        with serving(settings):
            assert item_of(ticket.result()).message_id == "m1"


def test_sending_again_by_the_same_id_answers_the_same(system: Settings, redis_client: Redis) -> None:
    """While the job is there, when it is gone, and for whoever asks only for the answer: byte for byte."""
    command_id = str(uuid4())
    with FeedbackClient.from_url(system.redis_url) as client:
        first = client.put("s", "m1", "positive", note="n", command_id=command_id)
        letters = msgspec.json.encode(first)
        for lost in (False, True):
            if lost:
                forget(redis_client, command_id)
            again = client.put("s", "m1", "positive", note="n", command_id=command_id.upper())
            assert (msgspec.json.encode(again), again.revision) == (letters, first.revision)
        forget(redis_client, command_id)
        recorded = client.result_of(command_id)
        assert (msgspec.json.encode(recorded), recorded.revision) == (letters, first.revision)
        assert json.loads(letters)["value"]["note"] == "n"


def test_two_hundred_puts_at_once(system: Settings) -> None:
    """On one asyncio client; all are applied, revisions are dense, each answer is its own."""
    for session_id in ("t", "u", "v"):
        write_session(system, session_id, *MESSAGES)
    targets = [(session_id, name) for name in MESSAGES for session_id in ("s", "t", "u", "v")]

    async def rate() -> list[Result]:
        async with AsyncFeedbackClient.from_url(system.redis_url) as client:
            answers = await asyncio.gather(*(client.put(*target, "positive", timeout=60) for target in targets))
            lists = await asyncio.gather(*(client.list(session_id, at_least=50) for session_id in ("s", "t", "u", "v")))
            assert [len(items_of(one)) for one in lists] == [50] * 4
            return answers

    answers = asyncio.run(rate())
    assert [item_of(answer).message_id for answer in answers] == [name for _, name in targets]
    for start in range(4):
        assert sorted(answer.revision or 0 for answer in answers[start::4]) == list(range(1, 51))


def test_threads_share_one_client(system: Settings) -> None:
    """Each gets its own answers."""
    with FeedbackClient.from_url(system.redis_url) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda name: client.put("s", name, "positive", note=name), MESSAGES))
    assert [(item_of(one).message_id, item_of(one).note) for one in answers] == [(name, name) for name in MESSAGES]


def test_a_cancelled_wait_leaves_the_client_usable(idle: Redis, valkey_url: str) -> None:
    """No answer of the cancelled call is taken for another one's."""

    async def use() -> None:
        async with AsyncFeedbackClient.from_url(valkey_url) as client:
            ticket = await client.submit(Put("s", "m", "positive"))
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ticket.result(), 0.05)
            again = await client.submit(Put("s", "m", "positive", command_id=ticket.command_id))
            assert again.command_id == ticket.command_id
            with pytest.raises(ResultTimeout):
                await again.result(timeout=0)

    asyncio.run(use())
