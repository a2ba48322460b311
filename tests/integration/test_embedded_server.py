"""The embedded server: its port, its data, and what it says when it cannot start."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from app.embedded import DURABLE, VOLATILE, EmbeddedServer
from app.inspection import read_server, refuse_unfit_server
from feedback.connection import connect
from feedback.errors import QueueUnavailable, SettingsInvalid, ShuttingDown

pytestmark = [pytest.mark.server, pytest.mark.process]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer(tmp_path / "valkey", DURABLE)
    try:
        yield embedded
    finally:
        embedded.stop()


def test_it_is_durable_evicts_nothing_and_listens_on_this_machine_only(server: EmbeddedServer) -> None:
    server.start()
    with Redis.from_url(server.url) as client:
        facts = read_server(client)
        assert (facts.name, facts.append_only, facts.maxmemory_policy) == ("valkey", True, "noeviction")
        assert facts.is_supported
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_port_and_data_survive_a_kill(server: EmbeddedServer, tmp_path: Path) -> None:
    server.start()
    with Redis.from_url(server.url) as client:
        client.set("key", "value")
    assert server.child is not None
    assert server.child.pid is not None
    os.kill(server.child.pid, signal.SIGKILL)
    server.stop()
    again = EmbeddedServer(tmp_path / "valkey", DURABLE)
    try:
        again.start()
        assert again.url == server.url
        with Redis.from_url(again.url) as client:
            assert client.get("key") == b"value"
    finally:
        again.stop()


def test_a_start_waits_until_all_data_is_loaded(server: EmbeddedServer, tmp_path: Path) -> None:
    """While it loads, a server says who it is, and refuses everything else."""
    server.start()
    with Redis.from_url(server.url) as client, client.pipeline(transaction=False) as pipeline:
        # It answers once in a thousand keys, and one request takes several answers.
        for number in range(40_000):
            pipeline.set(f"key {number}", "value")
        pipeline.execute()
    server.stop()
    slow = EmbeddedServer(tmp_path / "valkey", {**DURABLE, "key-load-delay": "30"})
    try:
        slow.start()
        with connect(slow.url) as client:  # redis-py's own would try again
            assert client.get("key 39999") == b"value"
    finally:
        slow.stop()


def test_a_port_that_is_taken_meanwhile_is_left_to_its_taker(server: EmbeddedServer) -> None:
    server.start()
    first = server.url
    server.stop()
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2].removesuffix("/0")))):
        server.start()
        assert server.url != first


def test_a_server_that_does_not_start_says_why(server: EmbeddedServer, tmp_path: Path) -> None:
    """Damaged files end in a typed error with the end of the server's log, not in a loop."""
    server.start()
    with Redis.from_url(server.url) as client:
        client.set("key", "value")
    server.stop()
    manifest = next((tmp_path / "valkey/appendonlydir").glob("*.manifest"))
    manifest.write_text("no manifest\n")
    with pytest.raises(QueueUnavailable, match=r"(?s)does not start.*AOF manifest"):
        server.start()


def test_starting_can_be_called_off(server: EmbeddedServer) -> None:
    with pytest.raises(ShuttingDown):
        server.start(cancelled=lambda: True)


def test_an_evicting_server_is_refused_and_one_that_is_away_is_not_judged(tmp_path: Path) -> None:
    evicting = EmbeddedServer(tmp_path / "valkey", {**VOLATILE, "maxmemory-policy": "allkeys-lru"})
    try:
        evicting.start()
        with pytest.raises(SettingsInvalid, match="allkeys-lru"):
            refuse_unfit_server(evicting.url)
    finally:
        evicting.stop()
    refuse_unfit_server(evicting.url)
