"""Live events over HTTP: in order, resumable, bounded, and honest about what will not come."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import msgspec
import pytest
from redis import Redis

from app.embedded import DURABLE, EmbeddedServer
from feedback import keys
from feedback.connection import connect, connect_async
from feedback.event_streams import Row
from feedback.events import FeedbackPut, encode_event
from feedback.model import Item
from feedback.partitions import PartitionId, Topology
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from gateway.live.feed import Feed
from gateway.live.hub import EventHub, delivery_of
from gateway.live.subscriptions import Delivery
from persistence.sidecar import open_store
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.gateway_serving import Sent, caller, gateway_serving, item_path, listening
from worker import topology as topologies

pytestmark = pytest.mark.server

PATIENCE_S = 30.0


class Streams:
    """A server's event streams, written as workers write them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.revisions = Counter[str]()
        self.use(Topology(generation=1, partitions=2, max_note_bytes=8192))

    def use(self, topology: Topology) -> None:
        self.topology = topology
        topologies.publish(self.redis, topology)
        self.sequences = dict.fromkeys(topology.all_partitions(), 0)

    def partition(self, session_id: str) -> PartitionId:
        return self.topology.partition_of(session_id)

    def add(self, session_id: str, note: str | None = None, *, partition: PartitionId | None = None) -> str:
        """One more event of a Session; its id."""
        partition = partition or self.partition(session_id)
        self.revisions[session_id] += 1
        self.sequences[partition] = sequence = self.sequences.get(partition, 0) + 1
        item = Item(message_id="m", rating="positive", note=note, version="v", created_at=1, updated_at=1)
        event = FeedbackPut(
            event_id=f"{partition}-{sequence}",
            command_id=str(uuid4()),
            session_id=session_id,
            revision=self.revisions[session_id],
            message_id="m",
            actor="ada",
            occurred_at=1,
            partition=partition.number,
            epoch=1,
            item=item,
        )
        self.redis.xadd(keys.events(partition), {"event": encode_event(event)}, id=f"{sequence}-0")
        return event.event_id


@pytest.fixture
def streams(redis_client: Redis) -> Streams:
    return Streams(redis_client)


@pytest.fixture
def client(streams: Streams, valkey_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a gateway over these streams; no worker runs."""
    with gateway_serving(settings_for(valkey_url, tmp_path, gateway_port=0)) as url, caller(url) as client:
        yield client


def readers(redis: Redis) -> int:
    """How many connections wait for events."""
    return sum("b" in one["flags"] for one in redis.client_list())


def ids(events: Iterator[Sent], number: int) -> list[str | None]:
    return [next(events).id for _ in range(number)]


def test_the_outcome_of_every_command_comes_to_whoever_listens(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """All four kinds, in commit order, of this Session alone; the data is the event of the contract."""
    settings = settings_for(valkey_url, tmp_path, gateway_port=0)
    write_session(settings, "s", "m1")
    write_session(settings, "t", "m1")
    path = item_path("s", "m1")
    with serving(settings), gateway_serving(settings) as url, caller(url) as client, ExitStack() as streams:
        mine = streams.enter_context(listening(client, "/sessions/s/events"))
        everybodys = streams.enter_context(listening(client, "/events"))
        assert next(mine).name == next(everybodys).name == "", "where they begin"
        other = client.put(item_path("t", "m1"), json={"rating": "negative"}, headers={"If-None-Match": "*"})
        put = client.put(path, json={"rating": "positive", "note": "ü"}, headers={"If-None-Match": "*"})
        tag = {"If-Match": put.headers["ETag"]}
        client.put(path, json={"rating": "positive", "note": "ü"}, headers=tag)
        client.put(path, json={"rating": "positive"}, headers={"If-None-Match": "*"})
        client.delete(path, headers=tag)
        sent = [next(mine) for _ in range(4)]
        assert [one.name for one in sent] == [
            "feedback.put",
            "feedback.unchanged",
            "feedback.rejected",
            "feedback.deleted",
        ]
        assert [one.data["type"] for one in sent] == [one.name for one in sent]
        assert [one.data["eventId"] for one in sent] == [one.id for one in sent]
        assert sent[0].data["item"] == put.json()
        assert (sent[0].data["session"], sent[0].data["revision"]) == ({"createdAt": 1_790_000_000_000, "cwd": "/w"}, 1)
        assert sent[2].data["error"] == {"code": "version-conflict", "current": put.json()}
        seen = [one for one in (next(everybodys) for _ in range(5)) if one.name]
        assert other.json() in [one.data.get("item") for one in seen]


def test_a_reader_that_comes_back_gets_what_it_missed_and_nothing_twice(client: httpx.Client, streams: Streams) -> None:
    """By the last id that it saw, of an event or of a mark; of everything at least what it missed."""
    first, second = streams.add("s"), streams.add("s")
    streams.add("t")
    with listening(client, "/sessions/s/events", first) as events:
        assert next(events).id == second
        mark = next(events)
        assert (mark.name, mark.id) == ("", f"{streams.partition('s')}-{streams.sequences[streams.partition('s')]}")
        third = streams.add("s")
        assert next(events).id == third
    fourth = streams.add("s")
    with listening(client, "/sessions/s/events", mark.id) as events:
        assert ids(events, 2) == [third, fourth]
    with listening(client, "/events") as events:
        here = next(events).id
        streams.add("t")
        assert next(events).data["sessionId"] == "t"
    missed = {streams.add(session) for session in ("s", "t", "s")}
    with listening(client, "/events", here) as events:
        assert missed < {one.data["eventId"] for one in (next(events) for _ in range(4))}


def test_a_reader_for_whom_events_are_gone_is_told_to_load_anew(client: httpx.Client, streams: Streams) -> None:
    """Trimmed, unreadable or lost ones, and ids that are none of ours; the stream then goes on."""
    partition = streams.partition("s")
    for _ in range(10):
        last = streams.add("s")
    streams.redis.xtrim(keys.events(partition), maxlen=3, approximate=False)
    here = f"{partition}-{streams.sequences[partition]}"
    for mark, reason in (
        (f"{partition}-1", "trimmed"),
        (f"{partition}-999", "lost"),
        (f"{PartitionId(1, 1 - partition.number)}-0", "unknown"),
        ("7-0-1", "unknown"),
        ("1:0.0", "unknown"),
        ("what?", "unknown"),
    ):
        with listening(client, "/sessions/s/events", mark) as events:
            assert next(events) == Sent(None, "reload", {"reason": reason})
            assert next(events) == Sent(here, "", None)
    with listening(client, "/sessions/s/events", f"{partition}-7") as events:
        assert [next(events).id for _ in range(3)][-1] == last
        assert next(events).name == ""
        streams.redis.xadd(keys.events(partition), {"event": b"junk"}, id=f"{streams.sequences[partition] + 1}-0")
        assert next(events).data == {"reason": "unreadable"}
        next(events)
        streams.sequences[partition] += 5
        jumped = streams.add("s")
        assert next(events).data == {"reason": "trimmed"}
        assert next(events).id == jumped
        # One of another generation that was never published, for example: the revision tells.
        streams.revisions["s"] += 1
        after_it = streams.add("s")
        assert next(events).data == {"reason": "lost"}
        assert next(events).id == after_it


def test_only_events_of_its_session_are_read_for_a_reader_and_not_among_too_many(
    client: httpx.Client, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between them is passed over, whatever it is; past a bound, to load anew is cheaper."""
    read, others = (
        list[str](),
        [name for name in map(str, range(99)) if streams.partition(name) == streams.partition("s")],
    )

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
    with listening(client, "/sessions/s/events", f"{partition}-0") as events:
        assert [next(events).id for _ in range(2)] == [mine, mine]
        streams.add(others[0])
        after_it = streams.add("s")
        assert next(events).id == after_it
    assert read == ["s", "s"]
    with listening(client, f"/sessions/{others[0]}/events", f"{partition}-10") as events:
        assert next(events).data == {"reason": "unreadable"}
    for _ in range(7):
        last = streams.add(others[1])
    with listening(client, "/sessions/s/events", f"{partition}-0") as events:
        assert [next(events) for _ in range(2)] == [Sent(None, "reload", {"reason": "too-many"}), Sent(last, "", None)]
    with listening(client, "/sessions/s/events", f"{partition}-1") as events:
        assert next(events).id == mine


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
        slow.sendall(b"GET /sessions/s/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
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


def test_a_change_of_partitions_is_followed(client: httpx.Client, streams: Streams) -> None:
    """The old generation's last events come first, then the new one's, to readers old and new."""
    old = streams.partition("s")
    before = streams.add("s")
    with listening(client, "/sessions/s/events") as events:
        next(events)
        for number in range(2):
            streams.redis.hset(keys.checkpoint(1), str(number), "0")
        streams.use(Topology(generation=2, partitions=8, max_note_bytes=8192))
        streams.sequences[old] = 1
        last = streams.add("s", partition=old)
        assert next(events).id == last
        new = streams.add("s")
        assert new.startswith("2-")
        assert next(events).id == new
        streams.redis.delete(keys.checkpoint(1))
        with listening(client, "/sessions/s/events", before) as late:
            assert ids(late, 2) == [last, new]
        newer = streams.add("s")
        assert next(events).id == newer
    with listening(client, "/sessions/s/events", "1:1.1") as events:
        assert next(events).name == "reload"


def test_a_change_of_partitions_under_workers_loses_no_event(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """With real workers and a real projector: every put before and after it comes, in order, to whoever listens."""
    settings = settings_for(valkey_url, tmp_path, gateway_port=0, gateway_timeout=30, partitions=0)
    write_session(settings, "s", *(f"m{number}" for number in range(12)))
    with (
        serving(settings),
        closing(open_store(settings.sidecar_url)) as store,
        gateway_serving(settings) as url,
        caller(url) as client,
        listening(client, "/sessions/s/events") as events,
    ):
        next(events)
        for number in range(12):
            if number == 6:
                topologies.change(redis_client, store, 5)
            put = client.put(item_path("s", f"m{number}"), json={"rating": "positive"}, headers={"If-None-Match": "*"})
            assert put.status_code == 201
        sent = [next(events) for _ in range(12)]
    assert [one.data["messageId"] for one in sent] == [f"m{number}" for number in range(12)]
    assert {one.data["eventId"].partition("-")[0] for one in sent} == {"1", "2"}


def test_readers_stay_while_redis_goes_away_and_comes_back(tmp_path: Path) -> None:
    """And get what was committed meanwhile, once."""
    server = EmbeddedServer(tmp_path / "valkey", DURABLE)
    server.start()
    try:
        with connect(server.url) as redis:
            streams = Streams(redis)
            streams.add("s")
            settings = settings_for(server.url, tmp_path, gateway_port=0)
            with (
                gateway_serving(settings) as url,
                caller(url) as client,
                listening(client, "/sessions/s/events") as events,
            ):
                next(events)
                server.stop()
                server.start()
                missed = streams.add("s")
                assert next(events).id == missed
                # All is forgotten, and published again from the store, as workers do.
                redis.flushall()
                streams.use(streams.topology)
                streams.revisions.clear()
                again = [streams.add("s") for _ in range(3)]
                assert next(events).id == again[-1]
    finally:
        server.stop()


def test_streams_end_when_the_gateway_does(streams: Streams, valkey_url: str, tmp_path: Path) -> None:
    """In order, and at once: a reader sees the end of the answer, and can come back elsewhere."""
    with ExitStack() as stack:
        serving_gateway = ExitStack()
        url = serving_gateway.enter_context(gateway_serving(settings_for(valkey_url, tmp_path, gateway_port=0)))
        client = stack.enter_context(caller(url))
        events = stack.enter_context(listening(client, "/events"))
        next(events)
        serving_gateway.close()
        assert list(events) == []


def test_a_quiet_stream_has_heartbeats_and_ends_when_its_reader_may_no_longer(
    streams: Streams, valkey_url: str
) -> None:
    """Each heartbeat says where the reader is, although nothing of its Session came."""
    allowed = True

    async def may_still() -> bool:
        return allowed

    async def run() -> list[bytes]:
        nonlocal allowed
        chunks = []
        async with connect_async(valkey_url) as redis:
            hub = EventHub(redis)
            feed = Feed(hub, redis, "s", None, recheck=may_still, heartbeat_s=0.02)
            async for chunk in feed.chunks():
                chunks.append(chunk)
                if len(chunks) == 3:
                    streams.add(beside)
                if chunk == f"id: {streams.partition('s')}-1\n\n".encode():
                    allowed = False
            hub.close()
        return chunks

    beside = next(name for name in map(str, range(99)) if streams.partition(name) == streams.partition("s"))
    chunks = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert chunks[0].startswith(b"retry: ")
    assert chunks[-1] == f"id: {streams.partition('s')}-1\n\n".encode()


def test_events_that_were_taken_back_are_said_to_be_lost(streams: Streams, valkey_url: str) -> None:
    """A stream that ends before what was read, and is not published again: its store was replaced by an older one."""
    for _ in range(5):
        streams.add("s")

    async def always() -> bool:
        return True

    async def run() -> bytes:
        async with connect_async(valkey_url) as redis:
            hub = EventHub(redis, lost_after_s=0)
            async for chunk in Feed(hub, redis, "s", None, recheck=always).chunks():
                if chunk.startswith(b"id: "):
                    streams.redis.delete(keys.events(streams.partition("s")))
                elif b"reload" in chunk:
                    break
            hub.close()
            return chunk

    assert b'"lost"' in asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
