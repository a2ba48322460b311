"""Connections of one's own on a real server: replies in order, and never one that belongs to another question."""

import asyncio
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from feedback.connection import connect, connect_async
from feedback.lines import AsyncLines, Lines
from tests.harness import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def lines(redis_client: Redis, valkey_url: str) -> Iterator[Lines]:
    with connect(valkey_url) as client, closing(Lines(client)) as lines:
        yield lines


def test_replies_come_in_order_and_an_error_costs_no_later_one(lines: Lines) -> None:
    """Alone, in the middle and at the end: what is sent afterwards gets its own replies."""
    assert lines.send(("SET", "a", b"\x00\xff"), ("GET", "a"), ("LPOP", "none")) == [b"OK", b"\x00\xff", None]
    for commands in ([("LPOP", "a")], [("LPOP", "a"), ("GET", "a")], [("GET", "a"), ("LPOP", "a")]):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            lines.send(*commands)
        assert lines.send(("ECHO", "x")) == [b"x"]
    refused, kept = lines.send(("LPOP", "a"), ("GET", "a"), refusals=True)
    assert isinstance(refused, ResponseError)
    assert kept == b"\x00\xff"


def test_a_broken_connection_is_said_once_and_made_anew(lines: Lines, redis_client: Redis) -> None:
    """Whoever sent decides whether to send again."""
    lines.send(("CLIENT", "SETNAME", "line"))
    redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(RedisConnectionError):
        lines.send(("PING",))
    assert lines.send(("PING",), ("CLIENT", "GETNAME")) == [b"PONG", None]
    lines.send(("CLIENT", "SETNAME", "line"))
    lines.drop()
    assert lines.send(("CLIENT", "GETNAME")) == [None]


def test_threads_and_forks_share_no_connection(lines: Lines, redis_client: Redis) -> None:
    """Who blocks holds up nobody else; a child does not answer its parent's questions."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lines.send, ("BLPOP", "bell", 20))
        wait_until(lambda: redis_client.info("clients")["blocked_clients"] == 1, "the thread waits")
        assert lines.send(("PING",)) == [b"PONG"]
        parent = lines.send(("CLIENT", "ID"))
        with warnings.catch_warnings(action="ignore"):  # later Pythons warn of forks beside threads
            child = os.fork()
        if child == 0:
            os._exit(int(lines.send(("CLIENT", "ID")) == parent))
        assert os.waitpid(child, 0)[1] == 0
        assert lines.send(("CLIENT", "ID")) == parent
        redis_client.rpush("bell", "x")
        assert waiting.result(20) == [[b"bell", b"x"]]


def test_closing_leaves_no_connection(lines: Lines, redis_client: Redis) -> None:
    """Not even one that is in use then."""
    before = redis_client.info("clients")["connected_clients"]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lines.send, ("BLPOP", "bell", 20))
        wait_until(lambda: redis_client.info("clients")["blocked_clients"] == 1, "the thread waits")
        lines.send(("PING",))
        lines.close()
        redis_client.rpush("bell", "x")
        waiting.result(20)
    wait_until(lambda: redis_client.info("clients")["connected_clients"] == before, "all are closed")


def test_a_cancelled_task_leaves_no_reply_behind(redis_client: Redis, valkey_url: str) -> None:
    """In asyncio, too: each question gets its own reply, whoever gave up before, whatever was refused."""

    async def scenario() -> None:
        async with connect_async(valkey_url) as client:
            lines = AsyncLines(client)
            assert await lines.send(("SET", "a", "x"), ("GET", "a")) == [b"OK", b"x"]
            waiting = asyncio.create_task(lines.send(("BLPOP", "bell", 20)))
            while not redis_client.info("clients")["blocked_clients"]:
                await asyncio.sleep(0)
            for _ in range(100):  # the task, too, is past its writing, where Python 3.11 may swallow the cancellation
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            for commands in ([("LPOP", "a")], [("LPOP", "a"), ("GET", "a")]):
                with pytest.raises(ResponseError, match="WRONGTYPE"):
                    await lines.send(*commands)
                assert await lines.send(("ECHO", "x")) == [b"x"]
            while redis_client.info("clients")["blocked_clients"]:
                await asyncio.sleep(0)
            redis_client.rpush("bell", "y")
            rung, echoed = await asyncio.gather(lines.send(("BLPOP", "bell", 20)), lines.send(("ECHO", "z")))
            assert (rung, echoed) == ([[b"bell", b"y"]], [b"z"])
            await lines.close()

    before = redis_client.info("clients")["connected_clients"]
    asyncio.run(scenario())
    wait_until(lambda: redis_client.info("clients")["connected_clients"] == before, "all are closed")
