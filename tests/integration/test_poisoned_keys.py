"""What a host may write, by its rights, stops no worker: it is put right, and commands go on being answered."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, FlushUnanswered, Put, QueueUnavailable, ResultTimeout, keys
from feedback.partitions import PartitionId
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session

pytestmark = pytest.mark.server

SESSION = "s"


def is_answered(client: FeedbackClient, message_id: str) -> bool:
    """Whatever the answer is: an earlier try may have been applied."""
    try:
        client.put(SESSION, message_id, "positive", timeout=2)
    except (QueueUnavailable, ResultTimeout):
        return False
    return True


def the_worker(redis: Redis) -> str:
    (worker,) = redis.smembers(keys.WORKERS)
    return worker.decode() if isinstance(worker, bytes) else worker


def bell_of_another_type(redis: Redis) -> None:
    redis.delete(keys.wake(the_worker(redis)))
    redis.set(keys.wake(the_worker(redis)), "x")


def bell_rung_with_absurd_numbers(redis: Redis) -> None:
    redis.rpush(keys.wake(the_worker(redis)), "7" * 40, b"\xff\xfe", b"flush:\xc1", "")


def queue_of_another_type(redis: Redis) -> None:
    for number in range(4):
        redis.set(keys.queue(PartitionId(1, number)), "x")


def topology_that_is_none(redis: Redis) -> None:
    redis.hset(keys.TOPOLOGY, "generation", "many")


def topology_of_another_type(redis: Redis) -> None:
    redis.delete(keys.TOPOLOGY)
    redis.set(keys.TOPOLOGY, "x")


def topology_of_a_far_generation(redis: Redis) -> None:
    redis.hset(keys.TOPOLOGY, mapping={"generation": "9" * 30, "partitions": 7})


def registration_of_another_type(redis: Redis) -> None:
    redis.set(keys.live(SESSION), "x")


def registration_of_no_time(redis: Redis) -> None:
    redis.set(keys.owner("host"), 1)
    redis.hset(keys.live(SESSION), mapping={"owner": "host", "session": SESSION, "created_at": 10**30})


@pytest.mark.parametrize(
    "poison",
    [
        bell_of_another_type,
        bell_rung_with_absurd_numbers,
        queue_of_another_type,
        topology_that_is_none,
        topology_of_another_type,
        topology_of_a_far_generation,
        registration_of_another_type,
        registration_of_no_time,
    ],
)
def test_a_host_that_writes_nonsense_stops_nobody(
    valkey_url: str, redis_client: Redis, tmp_path: Path, poison: Callable[[Redis], None]
) -> None:
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    write_session(settings, SESSION, "m1", "m2")
    with serving(settings, projector=False), FeedbackClient.from_url(valkey_url) as client:
        assert client.put(SESSION, "m1", "positive").ok
        poison(redis_client)
        # What the client cannot read yet it says at once: it is put right by the worker's next heartbeat.
        wait_until(lambda: is_answered(client, "m2"), "commands are answered again")


def test_a_list_of_requests_that_is_none_holds_up_its_own_session_only(
    valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """Nobody can be asked to flush: that is a flush without an answer, and fails by itself in the end."""
    settings = settings_for(valkey_url, tmp_path, flush_timeout=0.1, max_attempts=2)
    write_session(settings, SESSION, "m1")
    write_session(settings, "held", "m1")
    with serving(settings, projector=False), FeedbackClient.from_url(valkey_url) as client:
        redis_client.set(keys.owner("host"), 1)
        redis_client.hset(
            keys.live("held"), mapping={"owner": "host", "session": "held", "created_at": CREATED_AT, "cwd": "/w"}
        )
        redis_client.set(keys.flushes("host"), "x")
        held = client.submit(Put("held", "m1", "positive"))
        assert client.put(SESSION, "m1", "positive").ok
        with pytest.raises(FlushUnanswered):
            held.result()
