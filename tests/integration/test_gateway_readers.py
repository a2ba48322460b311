"""Readers of live events, many and bad ones: what they cost is bounded, and shared."""

import logging
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from redis import Redis

from feedback import keys
from feedback.event_streams import Row
from feedback.partitions import PartitionId
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from gateway.live.hub import delivery_of
from gateway.live.subscriptions import Delivery
from tests.harness import settings_for, wait_until
from tests.integration.gateway_serving import Sent, caller, gateway_serving, listening
from tests.integration.gateway_streams import Streams, client, readers, streams

__all__ = ["client", "streams"]  # the fixtures

pytestmark = pytest.mark.server


def test_only_events_of_its_session_are_read_for_a_reader_and_not_among_too_many(
    client: httpx.Client, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between them is passed over, whatever it is; past a bound, to load anew is cheaper."""
    read = list[str]()
    others = [name for name in map(str, range(99)) if streams.partition(name) == streams.partition("s")]

    def noting(partition: PartitionId, row: Row) -> Delivery | None:
        delivery = delivery_of(partition, row)
        read.append("" if delivery is None else delivery.session_id)
        return delivery

    monkeypatch.setattr("gateway.live.feed.delivery_of", noting)
    monkeypatch.setattr("gateway.live.hub.delivery_of", noting)
    monkeypatch.setattr("gateway.live.feed.MOST_SEARCHED", 20)
    partition = streams.partition("s")
    for number in range(10):
        streams.add(others[number % 3])
    streams.sequences[partition] += 1
    of_another_schema = msgspec.msgpack.encode({"type": "feedback.put", "schema": 99, "sessionId": others[0]})
    streams.redis.xadd(keys.events(partition), {"event": of_another_schema}, id=f"{streams.sequences[partition]}-0")
    mine = streams.add("s")
    for _ in range(9):
        last = streams.add(others[1])
    with listening(client, "/sessions/s/events", f"{partition}-0") as events:
        assert [next(events) for _ in range(2)] == [Sent(None, "reload", {"reason": "too-many"}), Sent(last, "", None)]
    with listening(client, "/sessions/s/events", f"{partition}-1") as events:
        assert [next(events).id for _ in range(2)] == [mine, last]
        streams.add(others[0])
        after_it = streams.add("s")
        assert next(events).id == after_it
    assert read == ["s", "s"]
    with listening(client, f"/sessions/{others[0]}/events", f"{partition}-10") as events:
        assert next(events).data == {"reason": "unreadable"}


def test_one_connection_reads_for_all_and_none_when_nobody_listens(
    client: httpx.Client, streams: Streams, redis_client: Redis
) -> None:
    """A reader that goes away is noticed."""
    with ExitStack() as stack:
        all_events = [stack.enter_context(listening(client, f"/sessions/{n % 3}/events")) for n in range(12)]
        for events in all_events:
            next(events)
        for session in "012":
            streams.add(session)
        assert [next(events).data["sessionId"] for events in all_events] == [str(n % 3) for n in range(12)]
        wait_until(lambda: readers(redis_client) == 1, "one reads")
    wait_until(lambda: readers(redis_client) == 0, "nobody listens any more")
    for _ in range(3):
        wait_until(lambda: readers(redis_client) == 0, "and it stays so")


def test_a_reader_that_stands_still_is_sent_away_and_holds_nobody_up(client: httpx.Client, streams: Streams) -> None:
    """Its buffers are bounded: at the end of what it was sent it finds that it should come back, and the end."""
    address = client.base_url
    with socket.socket() as slow, listening(client, "/sessions/t/events") as quick:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.host, address.port))
        slow.sendall(b"GET /sessions/s/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        next(quick)
        note = "x" * 50_000
        with streams.redis.pipeline(transaction=False) as pipeline:
            direct, streams.redis = streams.redis, pipeline
            for _ in range(400):
                streams.add("s", note)
            streams.redis = direct
            pipeline.execute()
        beside = streams.add("t")
        assert next(quick).id == beside
        received = b""
        while part := slow.recv(1 << 20):
            received = received[-1000:] + part
        assert b"event: resume\ndata: {}\n\n" in received[-100:]


def test_a_reader_that_takes_nothing_any_more_is_cut_off(
    client: httpx.Client,
    streams: Streams,
    redis_client: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was sent to it is thrown away: it would be held for ever."""
    monkeypatch.setattr("gateway.protocol.STALLED_S", 0.2)
    caplog.set_level(logging.INFO, "gateway.protocol")
    with socket.socket() as dead:
        dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        dead.connect((client.base_url.host, client.base_url.port))
        dead.sendall(b"GET /sessions/s/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert dead.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until(lambda: readers(redis_client) == 1, "it listens")
        for _ in range(200):
            streams.add("s", "x" * 50_000)
        wait_until(lambda: "stands still" in caplog.text, "it is given up")
        last = b""
        with suppress(ConnectionError):
            while part := dead.recv(1 << 20):
                last = part
        assert not last.endswith(b"0\r\n\r\n"), "the answer has no end"
    wait_until(lambda: readers(redis_client) == 0, "nobody listens any more")


def test_so_many_may_listen_and_of_one_token_so_many(
    streams: Streams, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place is free again however its reader went, even one that was gone before the first byte."""
    del streams
    monkeypatch.setattr("gateway.context.MOST_LISTENERS", 3)
    monkeypatch.setattr("gateway.context.MOST_LISTENERS_EACH", 2)
    tokens = TokenFile(tmp_path / "tokens.json")
    one, another = (tokens.create(name, tuple(Scope), now_ms=0, expires_at=None)[0] for name in ("ada", "grace"))
    settings = settings_for(valkey_url, tmp_path, gateway_port=0, gateway_tokens=str(tokens.path), gateway_rate=100_000)
    with gateway_serving(settings) as url, caller(url, one) as client, caller(url, another) as other:
        with listening(client, "/events"), listening(client, "/sessions/s/events"), listening(other, "/events"):
            for full, status, code in (
                (client.get("/events"), 429, "too-many-at-once"),
                (other.get("/events"), 503, "busy"),
            ):
                assert (full.status_code, full.json()["code"], full.headers["Retry-After"]) == (status, code, "1")

        def two_may_listen() -> bool:
            with client.stream("GET", "/events") as first, client.stream("GET", "/events") as second:
                return first.status_code == second.status_code == 200

        wait_until(two_may_listen, "readers that went away are not counted")
        request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {one}\r\n\r\n"
        for method in ("GET", "HEAD") * 10:
            with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as gone:
                gone.sendall(request.replace("GET", method).encode())
        wait_until(two_may_listen, "nor are those that never read")
