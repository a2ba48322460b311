"""Taking turns on partitions, on a real server: with workers, with others of its kind, with those that died over it."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, LiveSessions, keys
from feedback.connection import connect
from feedback.errors import QueueUnavailable
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId, Topology
from feedback.settings import Settings
from persistence.sidecar import open_store
from tests.harness import CREATED_AT, settings_for, wait_until, write_session
from tests.integration.rq_jobs import (
    enqueue_by_rq,
    events_of,
    job_settings,
    partition_of,
    put_command,
    set_up,
    stock_queue,
    wait_for_beats,
)
from worker import turn_taker, turns
from worker.core.shares import SINGLE_PREFIX
from worker.turn_taker import TurnTaker

pytestmark = pytest.mark.server

TOPOLOGY = Topology(generation=2, partitions=8, max_note_bytes=1)
TTL_S = 60.0
"""No machine is so busy that somebody who lives is taken for dead."""
PARTITIONS = tuple(PartitionId(2, number) for number in (1, 2, 3))
ONE, TWO = SINGLE_PREFIX + "one", SINGLE_PREFIX + "two"
SESSION = "s-turns"
LIFE = SessionIdentity(created_at=CREATED_AT, cwd="/w")


@pytest.fixture
def own(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """A client of its own: a turn taker blocks on it, though never for long."""
    monkeypatch.setattr(turn_taker, "_BEATS_PER_TTL", 300)
    with connect(valkey_url) as client:
        yield client


@pytest.fixture
def settings(
    valkey_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """A system without a worker, for stock jobs that give a live owner all the time that it needs."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0, flush_timeout=60.0, agent_timeout=61.0)
    write_session(settings, SESSION, "m0")
    set_up(redis_client, settings)
    with job_settings(settings, monkeypatch):
        yield settings


def deadline() -> float:
    return time.monotonic() + 60


def owners(redis: Redis) -> dict[bytes | str, bytes | str]:
    return redis.hgetall(keys.owners(2))


def test_who_waits_for_one_partition_leaves_the_others_to_those_who_serve_them(redis_client: Redis, own: Redis) -> None:
    """They are seized from a worker, and given back while another one's turn on the last of them lasts."""
    redis_client.hset(keys.owners(2), mapping={"1": "worker", "2": b"\xff"})
    with ThreadPoolExecutor(1) as threads, TurnTaker(own, TWO, TOPOLOGY, TTL_S) as two:
        with TurnTaker(redis_client, ONE, TOPOLOGY, TTL_S) as one:
            one.seize(PARTITIONS[2:], deadline())
            waiting = threads.submit(two.seize, PARTITIONS, deadline())
            wait_until(lambda: owners(redis_client) == {b"3": ONE.encode()}, "one and two were given back")
            assert not waiting.done()
        waiting.result()
        assert owners(redis_client) == dict.fromkeys((b"1", b"2", b"3"), TWO.encode())
        assert not two.sees_workers()
    assert not redis_client.exists(keys.owners(2), keys.WORKERS, keys.worker_session(ONE), keys.worker_session(TWO))


def test_a_turn_that_lasts_is_waited_for_until_the_deadline(redis_client: Redis, own: Redis) -> None:
    """Nobody who lives is robbed of it."""
    with TurnTaker(redis_client, ONE, TOPOLOGY, TTL_S) as one, TurnTaker(own, TWO, TOPOLOGY, TTL_S) as two:
        one.seize(PARTITIONS, deadline())
        with pytest.raises(QueueUnavailable, match="partition 2-1 is busy"):
            two.seize(PARTITIONS[:2], time.monotonic())
        assert owners(redis_client) == dict.fromkeys((b"1", b"2", b"3"), ONE.encode())


def test_one_that_died_in_its_turn_is_not_waited_for_however_long_its_session_stands(redis_client: Redis) -> None:
    """A server whose clock was set back keeps it for as long: what counts is a beat that changes."""
    redis_client.hset(keys.owners(2), "1", ONE)
    redis_client.sadd(keys.WORKERS, ONE)
    redis_client.set(keys.worker_session(ONE), 17)
    with TurnTaker(redis_client, TWO, TOPOLOGY, ttl_s=0.5) as two:
        two.seize(PARTITIONS[:1], deadline())
        assert owners(redis_client) == {b"1": TWO.encode()}


def test_a_stock_job_keeps_its_partition_for_as_long_as_it_takes(settings: Settings, redis_client: Redis) -> None:
    """It waits for a live owner for longer than a lease lasts; its heartbeats go on."""
    partition = partition_of(settings, SESSION)

    def flush() -> None:
        wait_for_beats(redis_client, redis_client.hget(keys.owners(1), str(partition.number)))

    command = put_command(SESSION, "m0")
    with (
        LiveSessions(redis_client) as live,
        live.register(SESSION, LIFE, flush),
        FeedbackClient(redis_client) as client,
    ):
        enqueue_by_rq(stock_queue(redis_client, settings, SESSION, is_async=False), command)
        assert client.result_of(command.command_id).revision == 1
    assert [event.epoch for event in events_of(redis_client, partition)] == [1], "in its only turn"


def test_a_stock_job_that_is_fenced_off_to_the_end_says_that_it_had_no_turn(
    settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which its caller may repeat; of fences, nobody is told."""
    monkeypatch.setattr(turns, "_PATIENCE_TTLS", 0)
    command = put_command(SESSION, "m0")
    with contextlib.closing(open_store(settings.sidecar_url)) as store:

        def flush() -> None:
            store.acquire_fences([partition_of(settings, SESSION)], "another")

        with (
            LiveSessions(redis_client) as live,
            live.register(SESSION, LIFE, flush),
            FeedbackClient(redis_client) as client,
        ):
            enqueue_by_rq(stock_queue(redis_client, settings, SESSION, is_async=False), command)
            with pytest.raises(QueueUnavailable, match="try again"):
                client.result_of(command.command_id)
