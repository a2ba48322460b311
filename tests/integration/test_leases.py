"""Leases on a real server: who lives, who owns what, and who is told (worker/scripts: heartbeat, assign, leave)."""

import pytest
from redis import Redis

from feedback import keys
from feedback.partitions import PartitionId, Topology
from worker.core.shares import Rebalance
from worker.leases import LeaseTable

pytestmark = pytest.mark.server

TOPOLOGY = Topology(generation=2, partitions=4096, max_note_bytes=1)


def table(redis: Redis, worker_id: str) -> LeaseTable:
    return LeaseTable(redis, worker_id, TOPOLOGY, ttl_s=30)


def rings(redis: Redis, worker_id: str) -> list[bytes]:
    """What rang for a worker since the last look."""
    rung = redis.lrange(keys.wake(worker_id), 0, -1)
    redis.delete(keys.wake(worker_id))
    return [ring for ring in rung if isinstance(ring, bytes)]


def claim(lease: LeaseTable, number: int, seen: str | None = None, beat: int | None = None) -> frozenset[int]:
    """Ask for one partition, as one that saw this owner with this beat."""
    beats = {} if seen is None or beat is None else {seen: beat}
    return lease.acquire(Rebalance(acquire=((number, seen),)), beats)


def owner(redis: Redis, number: int) -> object:
    return redis.hget(keys.owners(TOPOLOGY.generation), str(number))


def test_a_heartbeat_says_who_lives_and_who_owns_what(redis_client: Redis) -> None:
    """A worker that joins is announced to the others, once; one whose session ran out is not there any more."""
    one, two = table(redis_client, "one"), table(redis_client, "two")
    assert one.heartbeat(1, ()).beats == {"one": 1}
    assert claim(one, 7) == {7}
    view = two.heartbeat(5, ())
    assert (view.owners, view.beats, view.generation) == ({7: "one"}, {"one": 1, "two": 5}, None)
    assert rings(redis_client, "one") == [b"lease"]
    two.heartbeat(6, ())
    assert rings(redis_client, "one") == []
    redis_client.delete(keys.worker_session("one"))
    assert two.heartbeat(7, ()).beats == {"two": 7}
    assert redis_client.smembers(keys.WORKERS) == {b"two"}


def test_a_heartbeat_rings_for_what_nobody_rang_for(redis_client: Redis) -> None:
    """Once, however much waits; with as many queues as two generations may have."""
    lease = table(redis_client, "one")
    watched = [PartitionId(generation, number) for generation in (2, 1) for number in range(4096)]
    lease.heartbeat(1, watched)
    assert rings(redis_client, "one") == []
    for partition in (watched[5], watched[-1]):
        redis_client.rpush(keys.queue(partition), "job")
    lease.heartbeat(2, watched)
    lease.heartbeat(3, watched)
    assert rings(redis_client, "one") == [b"*"]


def test_a_live_owner_keeps_its_partition(redis_client: Redis) -> None:
    """It is displaced when its beat stood still, when its session ran out, or by force; never on stale knowledge."""
    one, two = table(redis_client, "one"), table(redis_client, "two")
    one.heartbeat(10, ())
    two.heartbeat(20, ())
    assert claim(one, 3) == {3}
    assert claim(one, 3) == {3}, "repeated"
    assert claim(two, 3) == frozenset(), "seen free"
    assert claim(two, 3, "one", 9) == frozenset(), "its beat goes on"
    assert claim(two, 3, "three", 10) == frozenset(), "seen with another owner"
    assert owner(redis_client, 3) == b"one"
    assert claim(two, 3, "one", 10) == {3}, "its beat stood still"
    redis_client.delete(keys.worker_session("two"))
    assert claim(one, 3, "two") == {3}, "its session ran out"
    two.heartbeat(21, ())
    assert two.seize({3: "one", 4: None, 5: "one"}) == {3, 4}, "by force, where it is as it was seen"
    assert owner(redis_client, 3) == b"two"


def test_only_an_owner_gives_back(redis_client: Redis) -> None:
    """And the others are told, so that they take it at once."""
    one, two = table(redis_client, "one"), table(redis_client, "two")
    one.heartbeat(1, ())
    two.heartbeat(1, ())
    claim(one, 3)
    for worker in ("one", "two"):
        rings(redis_client, worker)
    two.release([3])
    assert owner(redis_client, 3) == b"one"
    assert rings(redis_client, "one") == []
    one.release([3])
    assert owner(redis_client, 3) is None
    assert rings(redis_client, "two") == [b"lease"]


def test_a_worker_that_leaves_is_gone(redis_client: Redis) -> None:
    """Session and bell; what it still owned is free for the taking."""
    one, two = table(redis_client, "one"), table(redis_client, "two")
    one.heartbeat(1, ())
    two.heartbeat(1, ())
    claim(one, 3)
    one.ring()
    rings(redis_client, "two")
    one.leave()
    assert not redis_client.exists(keys.worker_session("one"), keys.wake("one"))
    assert rings(redis_client, "two") == [b"lease"]
    assert claim(two, 3, "one") == {3}
