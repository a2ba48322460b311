"""Both clients against a real server, with a worker and a projector of the real code."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
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
    CommandExpired,
    CommandIdReused,
    CommandUnknown,
    Delete,
    FeedbackClient,
    InvalidRequest,
    Item,
    ItemList,
    NoteTooLarge,
    Ok,
    Put,
    QueueFull,
    QueueUnavailable,
    Rejected,
    Result,
    ResultTimeout,
    SessionNotFound,
    ShuttingDown,
    VersionConflict,
    keys,
)
from feedback.partitions import Topology
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from worker.topology import publish

pytestmark = pytest.mark.server

MESSAGES = tuple(f"m{number}" for number in range(50))


@pytest.fixture
def system(redis_client: Redis, valkey_url: str, tmp_path: Path) -> Iterator[Settings]:
    """A serving system with one Session, "s"."""
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", *MESSAGES)
    with serving(settings):
        yield settings


@pytest.fixture
def idle(redis_client: Redis) -> Redis:
    """A server that was set up, where no worker runs."""
    publish(redis_client, Topology(generation=1, partitions=4, max_note_bytes=8192))
    return redis_client


def item_of(result: Result) -> Item:
    assert isinstance(result, Ok), result
    assert isinstance(result.value, Item)
    return result.value


def items_of(result: Result) -> tuple[Item, ...]:
    assert isinstance(result, Ok), result
    assert isinstance(result.value, ItemList)
    return result.value.items


def forget(redis: Redis, command_id: str) -> None:
    """Redis loses what it knows of a command."""
    redis.delete(keys.job(command_id), keys.results(command_id))


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


@pytest.mark.parametrize("name", OPTIONS)
def test_a_client_can_be_made_of_any_redis_client(system: Settings, redis_client: Redis, name: str) -> None:
    """However that one is configured; it stays its owner's, and closing ours leaves no connection behind."""
    retrying = {} if "single" in OPTIONS[name] else {"retry": Retry(ExponentialBackoff(), 3)}
    with Redis.from_url(system.redis_url, client_name="theirs", **OPTIONS[name], **retrying) as theirs:
        theirs.ping()
        with FeedbackClient(theirs) as client:
            result = client.put("s", "m1", "positive", note="n")
            assert items_of(client.list("s", at_least=result.revision)) == (item_of(result),)
            assert len(connections(redis_client, "theirs")) > 1
        assert len(connections(redis_client, "theirs")) == 1
        assert theirs.ping()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_async_client_can_be_made_of_any_redis_client(system: Settings, redis_client: Redis, name: str) -> None:
    """As above, for asyncio."""

    async def use() -> None:
        retrying = {"retry": AsyncRetry(ExponentialBackoff(), 3)}
        async with aio.Redis.from_url(system.redis_url, client_name="theirs", **OPTIONS[name], **retrying) as theirs:
            await theirs.ping()
            async with AsyncFeedbackClient(theirs) as client:
                result = await client.put("s", "m1", "positive", note="n")
                assert items_of(await client.list("s", at_least=result.revision)) == (item_of(result),)
            assert len(connections(redis_client, "theirs")) == 1
            assert await theirs.ping()

    asyncio.run(use())


def connections(redis: Redis, name: str) -> list[Any]:
    """The server's view; a closed connection may take it a moment."""

    def seen() -> list[Any]:
        return [one for one in redis.client_list() if one["name"] == name]

    wait_until(lambda: all(one["flags"] == "N" for one in seen()), "no client is closing")
    return seen()


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


def test_a_command_that_nobody_serves_waits_for_its_worker(system: Settings, idle: Redis, tmp_path: Path) -> None:
    """Enqueued before any worker runs, answered when one does; a timeout in between loses nothing."""
    with FeedbackClient.from_url(system.redis_url) as client:
        ticket = client.submit(Put("s", "m1", "positive"))
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
        queued = [one.decode() for one in idle.lrange(keys.queue(partition), 0, -1)]
        assert queued == [ticket.command_id for ticket in tickets[:2]]


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
