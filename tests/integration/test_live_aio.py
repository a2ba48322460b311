"""What only an asyncio host can do to its live Sessions: cancel, and mistake a function for a coroutine function."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest
from redis import Redis
from redis import asyncio as aio

from feedback import AsyncLiveSessions, keys
from feedback.flushing import FlushReply
from feedback.live_aio import AsyncFlush, AsyncLiveSession
from feedback.live_core import _hold
from tests.integration.live_hosts import LIFE, Asker, registration
from tests.proxy import Proxy, runs

pytestmark = pytest.mark.server

Scenario = Callable[[AsyncLiveSessions], Coroutine[None, None, None]]


@pytest.fixture
def asker(redis_client: Redis) -> Asker:
    return Asker(redis_client)


def run(url: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with AsyncLiveSessions.from_url(url) as live:
            await scenario(live)

    asyncio.run(main())


async def flushed(asker: Asker, live: AsyncLiveSessions) -> FlushReply:
    return await asyncio.to_thread(asker.flushed, live)


def test_a_flush_that_is_cancelled_is_answered_and_the_next_one_runs(valkey_url: str, asker: Asker) -> None:
    outcomes: list[BaseException | int] = [asyncio.CancelledError(), 4]

    async def flush() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def scenario(live: AsyncLiveSessions) -> None:
        await live.register("s", LIFE, flush)
        assert (await flushed(asker, live)).reason == "the flush was cancelled"
        assert (await flushed(asker, live)).durable == 4

    run(valkey_url, scenario)


def test_a_flush_that_cannot_be_awaited_is_a_failed_one(valkey_url: str, asker: Asker) -> None:
    def flush() -> int:
        return 1

    async def scenario(live: AsyncLiveSessions) -> None:
        mistaken: AsyncFlush = flush  # type: ignore[assignment]  # that is the mistake
        await live.register("s", LIFE, mistaken)
        assert (await flushed(asker, live)).reason.startswith("TypeError: ")

    run(valkey_url, scenario)


def test_a_session_may_close_itself_from_its_flush(valkey_url: str, asker: Asker) -> None:
    handles: list[AsyncLiveSession] = []

    async def flush() -> int:
        await handles[0].close()
        return 1

    async def scenario(live: AsyncLiveSessions) -> None:
        handles.append(await live.register("s", LIFE, flush))
        assert (await flushed(asker, live)).status == "flushed"
        assert (await flushed(asker, live)).status == "detached"

    run(valkey_url, scenario)


def test_a_cancelled_registration_is_not_left_behind(valkey_url: str, redis_client: Redis) -> None:
    """The server has heard of it when the host changes its mind."""
    with Proxy(valkey_url) as proxy:
        redis_client.script_load(_hold.source)
        trap = proxy.hold_reply(runs(_hold))

        async def scenario(live: AsyncLiveSessions) -> None:
            registering = asyncio.create_task(live.register("s", LIFE, never))
            await asyncio.to_thread(trap.wait)
            assert registration(redis_client)
            registering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await registering
            trap.release()

        run(proxy.url, scenario)
    assert redis_client.keys("*") == []


def test_the_callers_client_stays_the_callers(valkey_url: str, redis_client: Redis) -> None:
    async def main() -> None:
        async with aio.Redis.from_url(valkey_url, decode_responses=True, socket_timeout=0.5) as client:
            async with AsyncLiveSessions(client) as live, await live.register("s", LIFE, never) as session:
                assert (session.session_id, session.identity) == ("s", LIFE)
                assert redis_client.exists(keys.owner(live.owner_id))
            pong: Awaitable[bool] | bool = client.ping()
            assert not isinstance(pong, bool)
            assert await pong

    asyncio.run(main())


async def never() -> int:
    raise AssertionError("nobody asked for a flush")
