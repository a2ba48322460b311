"""Enqueueing that waits for the server's own stable storage, and a server that is killed right after."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from app.embedded import DURABLE, VOLATILE, EmbeddedServer
from feedback import AsyncFeedbackClient, FeedbackClient, Ok, Put, QueueUnavailable, keys
from feedback.partitions import Topology
from feedback.settings import Settings
from tests.harness import serving, settings_for, write_session
from tests.processes import kill

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of its own, with the append-only file that `feedback up` uses."""
    (tmp_path / "server").mkdir()
    server = EmbeddedServer(tmp_path / "server", DURABLE)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def set_up(url: str, home: Path) -> Settings:
    settings = settings_for(url, home)
    write_session(settings, "s", "m1")
    with serving(settings, projector=False):
        pass
    return settings


def test_what_was_durable_survives_the_servers_death(server: EmbeddedServer, tmp_path: Path) -> None:
    settings = set_up(server.url, tmp_path)
    with FeedbackClient.from_url(server.url) as client:
        ticket = client.submit(Put("s", "m1", "positive"), durable=True)
        again = client.submit(Put("s", "m1", "positive", command_id=ticket.command_id), durable=True)
        assert again.command_id == ticket.command_id
        assert server.child is not None
        kill(server.child)
        server.stop()
        server.start()
        with Redis.from_url(server.url) as redis:
            partition = Topology(generation=1, partitions=4, max_note_bytes=1).partition_of("s")
            assert redis.lrange(keys.queue(partition), 0, -1) == [ticket.command_id.encode()]
        with serving(settings, projector=False):
            assert isinstance(ticket.result(), Ok)


def test_asyncio_hosts_may_ask_for_it_too(server: EmbeddedServer, tmp_path: Path) -> None:
    settings = set_up(server.url, tmp_path)

    async def rate() -> bool:
        async with AsyncFeedbackClient.from_url(server.url) as client:
            (ticket,) = await client.submit_many([Put("s", "m1", "positive")], durable=True)
            return isinstance(await ticket.result(), Ok)

    with serving(settings, projector=False):
        assert asyncio.run(rate())


def test_a_server_without_an_append_only_file_cannot_promise_it(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = EmbeddedServer(tmp_path / "server", VOLATILE)
    server.start()
    try:
        settings = set_up(server.url, tmp_path)
        with FeedbackClient.from_url(settings.redis_url) as client, pytest.raises(QueueUnavailable, match="WAITAOF"):
            client.submit(Put("s", "m1", "positive"), durable=True)
    finally:
        server.stop()
