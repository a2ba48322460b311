"""Live events over HTTP: in order, resumable, bounded, and honest about what will not come."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from redis import Redis

from app.embedded import DURABLE, EmbeddedServer
from feedback import keys
from feedback.connection import connect, connect_async
from feedback.partitions import PartitionId, Topology
from gateway.live.feed import Feed
from gateway.live.hub import EventHub
from persistence.sidecar import open_store
from tests.harness import serving, settings_for, write_session
from tests.integration.gateway_serving import Sent, caller, gateway_serving, item_path, listening
from tests.integration.gateway_streams import Streams, client, streams
from worker import topology as topologies

__all__ = ["client", "streams"]  # the fixtures

pytestmark = pytest.mark.server

PATIENCE_S = 30.0


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
