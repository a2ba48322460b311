"""The follower on a real server and a real store: whatever the streams do, the cached lists become the store's."""

import threading
from typing import Any

import msgspec
import pytest
from redis import Redis

from feedback import keys
from feedback.connection import connect
from feedback.errors import SettingsInvalid
from feedback.events import encode_event
from feedback.partitions import Topology
from projections import gathering, runner
from projections.cache import ListCache
from projections.gathering import Gathered
from projections.lag import lag
from projections.rebuild import rebuild
from projections.runner import Follower
from tests.integration.projecting import (
    NEXT_LIFE,
    SESSIONS,
    Deployment,
    assert_equals_store,
    running,
    settle,
    stream_of,
    wait_until,
)


def test_live_events_become_lists(follower: Follower, deployment: Deployment) -> None:
    """Puts, updates, deletes, a new life, rejections: the cached list is the store's after each."""
    for session_id in SESSIONS:
        deployment.put(session_id, "m1", note="n" * 2000)
        deployment.put(session_id, "m2")
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)
    deployment.put("session-0", "m1", "negative")
    deployment.delete("session-1", "m1")
    deployment.put("session-2", "m9", identity=NEXT_LIFE)
    deployment.reject("session-3")
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)
    assert [item.message_id for item in deployment.cached("session-0")["session-0"].items] == ["m1", "m2"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_events_in_a_thread_while_it_runs(valkey_url: str, deployment: Deployment, protocol: int) -> None:
    """The blocking read brings events without anybody stepping, in either protocol of the server."""
    with connect(f"{valkey_url}?protocol={protocol}") as client, running(Follower(client, deployment.store)):
        deployment.settle()
        for _ in range(3):
            for session_id in SESSIONS:
                deployment.put(session_id)
            deployment.settle()
    assert_equals_store(deployment, *SESSIONS)


def test_waits_for_a_topology(valkey_url: str, redis_client: Redis, deployment: Deployment) -> None:
    """A projector may start before the first worker."""
    redis_client.delete(keys.TOPOLOGY)
    with connect(valkey_url) as client:
        follower = Follower(client, deployment.store)
        assert not follower.step(1)
        redis_client.hset(keys.TOPOLOGY, "generation", "x")
        assert not follower.step(1)
        redis_client.delete(keys.TOPOLOGY)
        redis_client.set(keys.TOPOLOGY, "x")
        assert not follower.step(1)
        redis_client.delete(keys.TOPOLOGY)
        deployment.announce()
        deployment.put("session-0")
        settle(follower, deployment)


def test_refuses_another_deployments_store(valkey_url: str, redis_client: Redis, deployment: Deployment) -> None:
    """Lists of a foreign store are never cached; the message has both topologies."""
    redis_client.hset(keys.TOPOLOGY, "partitions", 5)
    with connect(valkey_url) as client, pytest.raises(SettingsInvalid, match=r"5 partitions.* 2 partitions"):
        Follower(client, deployment.store).step(1)


def test_killed_between_apply_and_checkpoint(follower: Follower, deployment: Deployment) -> None:
    """P11: views that are ahead of the checkpoint are met again, and nothing is applied twice."""
    for session_id in SESSIONS:
        deployment.put(session_id, "m1")
        deployment.put(session_id, "m2")
    cache = ListCache(deployment.redis)
    views = [view for session_id in SESSIONS if (view := deployment.view(session_id))]
    assert cache.store(cache.read(()).era, views)
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)


def test_restart_goes_on_from_the_checkpoint(valkey_url: str, follower: Follower, deployment: Deployment) -> None:
    """A new follower reads what the last one had not, and keeps what is cached."""
    deployment.put("session-0")
    deployment.put("session-1")
    settle(follower, deployment)
    era = ListCache(deployment.redis).read(()).era
    deployment.put("session-0", "m2")
    with connect(valkey_url) as client:
        settle(Follower(client, deployment.store), deployment)
    assert_equals_store(deployment, "session-0", "session-1")
    assert ListCache(deployment.redis).read(()).era == era


@pytest.mark.parametrize("shift", [0, 7])
def test_poisoned_views_do_not_last(follower: Follower, deployment: Deployment, shift: int) -> None:
    """A well-formed entry of a revision, or a life, that the store never had is replaced at the next event."""
    deployment.put("session-0", "m1")
    deployment.put("session-0", "m2")
    settle(follower, deployment)
    event = deployment.put("session-0", "m3")
    cache = ListCache(deployment.redis)
    era = cache.read(()).era
    true = deployment.view("session-0")
    assert true is not None
    cache.drop(["session-0"])
    forged = msgspec.structs.replace(true, identity=NEXT_LIFE, revision=event.revision + shift, items=())
    assert cache.store(era, [forged])
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_two_projectors_racing(valkey_url: str, deployment: Deployment) -> None:
    """Both follow the same streams; each event counts once, and the lists are the store's."""
    with connect(valkey_url) as one, connect(valkey_url) as other:
        with running(Follower(one, deployment.store), Follower(other, deployment.store)):
            deployment.settle()
            for round_ in range(15):
                for session_id in SESSIONS:
                    deployment.put(session_id, f"m{round_ % 4}")
            deployment.settle()
        assert_equals_store(deployment, *SESSIONS)


def test_flushall_while_it_runs(valkey_url: str, deployment: Deployment) -> None:
    """Topology, streams, checkpoints, lists: all gone. What comes next is followed, and nothing stale is cached."""
    with connect(valkey_url) as client, running(Follower(client, deployment.store)):
        deployment.settle()
        for session_id in SESSIONS:
            deployment.put(session_id, "m1")
        deployment.settle()
        deployment.redis.flushall()
        for session_id in SESSIONS:
            deployment.put(session_id, "m2", publish=False)
        deployment.settle()
        deployment.announce()
        for session_id in SESSIONS:
            deployment.put(session_id, "m3")
        deployment.settle()
    for session_id in SESSIONS:
        deployment.put(session_id, "m4")
    with connect(valkey_url) as client:
        settle(Follower(client, deployment.store), deployment)
    assert_equals_store(deployment, *SESSIONS)


@pytest.mark.parametrize("key", ["stream", "checkpoint", "era"])
def test_keys_of_another_type(valkey_url: str, deployment: Deployment, key: str) -> None:
    """Whatever somebody put under our names is dropped, and made anew."""
    deployment.put("session-0", "m1")
    names = {"stream": stream_of(deployment, "session-0"), "checkpoint": keys.checkpoint(1), "era": keys.LIST_ERA}
    with connect(valkey_url) as client, running(Follower(client, deployment.store)):
        deployment.settle()
        deployment.redis.delete(names[key])
        deployment.redis.sadd(names[key], "x")
        deployment.put("session-0", "m2", publish=False)
        wait_until(lambda: deployment.redis.type(names[key]) != b"set", "the foreign key is dropped")
        deployment.settle()
        deployment.put("session-0", "m3")
        deployment.settle()
    assert_equals_store(deployment, "session-0")


def test_a_new_generation_is_followed_after_the_old_one(follower: Follower, deployment: Deployment) -> None:
    """Not before the last event of the old one; then its checkpoints are gone."""
    for session_id in SESSIONS:
        deployment.put(session_id, "m1")
    settle(follower, deployment)
    old = (deployment.topology, deployment.epochs, deployment.sequences)
    deployment.use(Topology(generation=2, partitions=3, max_note_bytes=8192))
    new = (deployment.topology, deployment.epochs, deployment.sequences)
    deployment.topology, deployment.epochs, deployment.sequences = old
    follower.step(1)
    deployment.put("session-0", "m2")
    settle(follower, deployment)
    deployment.put("session-1", "m2")
    deployment.topology, deployment.epochs, deployment.sequences = new
    deployment.put("session-0", "m3")
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)
    assert not deployment.redis.exists(keys.checkpoint(1))


def test_rebuild_equals_live(valkey_url: str, deployment: Deployment) -> None:
    """Rebuilt while events come in, the lists become what they would have been."""
    with connect(valkey_url) as client, running(Follower(client, deployment.store)):
        deployment.settle()
        for session_id in SESSIONS:
            deployment.put(session_id, "m1")
        deployment.settle()
        live = deployment.cached(*SESSIONS)
        rebuild(deployment.redis)
        assert deployment.cached(*SESSIONS) == {}
        for session_id in SESSIONS[:3]:
            deployment.put(session_id, "m2")
        deployment.settle()
        assert_equals_store(deployment, *SESSIONS[:3])
    assert {key: live[key] for key in SESSIONS[3:]} == {key: deployment.view(key) for key in SESSIONS[3:]}


def test_lag_is_what_is_committed_and_not_projected(follower: Follower, deployment: Deployment) -> None:
    """Per partition; 0 when idle."""
    store, topology = deployment.store, deployment.topology
    assert set(lag(deployment.redis, store, topology).values()) == {0}
    partition = deployment.put("session-0") and deployment.partition("session-0")
    other = next(one for one in topology.all_partitions() if one != partition)
    deployment.put("session-0", "m2")
    assert lag(deployment.redis, store, topology) == {partition: 2, other: 0}
    settle(follower, deployment)
    assert set(lag(deployment.redis, store, topology).values()) == {0}


def test_no_key_is_left_without_a_reason(follower: Follower, deployment: Deployment) -> None:
    """All that the follower leaves: lists that expire, the era, one checkpoint hash."""
    for session_id in SESSIONS:
        deployment.put(session_id)
    settle(follower, deployment)
    lasting = {key for key in deployment.redis.scan_iter() if deployment.redis.ttl(key) == -1}
    streams = {keys.events(partition).encode() for partition in deployment.topology.all_partitions()}
    assert lasting - streams == {keys.TOPOLOGY.encode(), keys.LIST_ERA.encode(), keys.checkpoint(1).encode()}


def test_stops_soon(valkey_url: str, deployment: Deployment) -> None:
    """A follower that waits for events ends when it is told to."""
    stop = threading.Event()
    with connect(valkey_url) as client:
        thread = threading.Thread(target=Follower(client, deployment.store).run, args=(stop,))
        thread.start()
        wait_until(lambda: bool(deployment.redis.exists(keys.checkpoint(1))), "the follower follows")
        stop.set()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("published", [True, False], ids=["in the stream", "in the store only"])
def test_giant_events_are_held_a_few_at_a_time(
    follower: Follower, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """Rounds are bounded by bytes, whatever the events' size and number, and go on where the last one ended."""
    monkeypatch.setattr(gathering, "ROUND_BYTES", 200_000)
    monkeypatch.setattr(gathering, "_READ_ON_BYTES", 100_000)
    held: list[int] = []

    def measured(*args: Any) -> Any:
        found = gathering.gather(*args)
        assert isinstance(found, Gathered)
        held.append(sum(len(encode_event(event)) for event in found.events))
        return found

    monkeypatch.setattr(runner, "gather", measured)
    for number in range(60):
        deployment.put("session-0", f"m{number % 3}", note="x" * 8192, publish=published)
    settle(follower, deployment)
    assert sum(held) > 60 * 8192
    assert 50_000 < max(held) <= 200_000 / 2 + 2 * 9000, "of one of two partitions, and one event past its share"
    assert_equals_store(deployment, "session-0")


def test_a_big_backlog_is_read_in_rounds(follower: Follower, deployment: Deployment) -> None:
    """More events than one round takes, most of them only in the store."""
    partition = deployment.partition("session-0")
    for number in range(1100):
        deployment.put("session-0", f"m{number % 7}", publish=number % 100 == 99)
    assert deployment.sequences[partition] == 1100
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")
    assert deployment.cached("session-0")["session-0"].revision == 1100
