"""Streams, logs, checkpoints and cache that are lost, trimmed or forged: the lists become the store's all the same."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from feedback import keys
from feedback.connection import connect
from feedback.events import encode_event
from persistence.sidecar import SqliteStore
from projections.runner import Follower
from tests.integration.projecting import (
    SESSIONS,
    Deployment,
    assert_equals_store,
    settle,
    stream_of,
)


def test_cache_deleted(follower: Follower, deployment: Deployment) -> None:
    """A Session whose entry is gone is loaded from the store by its next event."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    deployment.redis.delete(keys.list_cache("session-0"))
    deployment.put("session-0", "m2")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_stream_trimmed_past_the_checkpoint(follower: Follower, deployment: Deployment) -> None:
    """What the stream lost is read from the store's log."""
    for message_id in ("m1", "m2", "m3", "m4"):
        for session_id in SESSIONS:
            deployment.put(session_id, message_id)
    for session_id in SESSIONS:
        deployment.redis.xtrim(stream_of(deployment, session_id), maxlen=2, approximate=False)
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)


def test_stream_deleted(follower: Follower, deployment: Deployment) -> None:
    """Without any stream, the store's log brings the lists up to date."""
    for session_id in SESSIONS:
        deployment.put(session_id)
        deployment.redis.delete(stream_of(deployment, session_id))
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)


def test_events_that_were_never_published(follower: Follower, deployment: Deployment) -> None:
    """Redis lost the end of the streams: the follower notices that the store is ahead."""
    for session_id in SESSIONS:
        deployment.put(session_id, publish=False)
    settle(follower, deployment)
    assert_equals_store(deployment, *SESSIONS)


def test_log_pruned_past_the_checkpoint(follower: Follower, deployment: Deployment) -> None:
    """Nothing says which Sessions changed, so every cached list becomes absent, and the follower goes on."""
    for session_id in SESSIONS:
        deployment.put(session_id, "m1")
    settle(follower, deployment)
    for session_id in SESSIONS:
        deployment.put(session_id, "m2", publish=False)
    assert deployment.store.prune(expired_before=10, limit=1000) > 0
    settle(follower, deployment)
    assert deployment.cached(*SESSIONS) == {}
    deployment.put("session-0", "m3")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_log_pruned_in_the_middle(follower: Follower, deployment: Deployment, store: SqliteStore) -> None:
    """Records do not expire in order: a hole in the store's log is seen as well."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    for message_id in ("m2", "m3"):
        deployment.put("session-0", message_id, publish=False)
    partition = deployment.partition("session-0")
    later = store.outcomes(partition, 2, 1)
    with store.transaction({partition: deployment.epochs[partition]}) as transaction:
        command_id = msgspec.msgpack.decode(later[0][1])["commandId"]
        transaction.apply((), (), {command_id: 100})
    assert store.prune(expired_before=10, limit=1000) == 2
    settle(follower, deployment)
    assert deployment.cached("session-0") == {}


def test_a_store_that_went_back(follower: Follower, deployment: Deployment, store: SqliteStore) -> None:
    """What it lost is in no list, once, and then no more: its stream would say it again and again."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    partition = deployment.partition("session-0")
    with closing(sqlite3.connect(":memory:")) as older:
        with store._connections.lease() as connection:
            connection.backup(older)
        for message_id in ("m2", "m3"):
            deployment.put("session-0", message_id)
        settle(follower, deployment)
        with store._connections.lease() as connection:
            older.backup(connection)
    before, eras = deployment.redis.get(keys.LIST_ERA), set()
    for _ in range(20):
        follower._next_look = 0.0
        follower.step(1)
        eras.add(deployment.redis.get(keys.LIST_ERA))
    assert len(eras) == 1
    assert before not in eras
    assert deployment.cached("session-0") == {}
    deployment.sequences[partition] = 1
    deployment.put("session-0", "m4")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


@pytest.mark.parametrize("value", [None, "x", "-3", str(10**15), str(10**30)])
def test_checkpoint_lost_or_poisoned(
    valkey_url: str, follower: Follower, deployment: Deployment, value: str | None
) -> None:
    """Lost, garbage, or ahead of the store: no list of before is trusted, and the follower goes on from the heads."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    number = deployment.partition("session-0").number
    if value is None:
        deployment.redis.delete(keys.checkpoint(1))
    else:
        deployment.redis.hset(keys.checkpoint(1), str(number), value)
    deployment.put("session-0", "m2", publish=False)
    with connect(valkey_url) as client:
        restarted = Follower(client, deployment.store)
        settle(restarted, deployment)
        assert deployment.cached("session-0") == {}
        deployment.put("session-0", "m3")
        settle(restarted, deployment)
    assert_equals_store(deployment, "session-0")


def test_checkpoint_lost_while_it_runs(follower: Follower, deployment: Deployment) -> None:
    """The compare refuses the next round; the follower finds out why."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    deployment.redis.delete(keys.checkpoint(1))
    deployment.put("session-0", "m2")
    settle(follower, deployment)
    deployment.put("session-0", "m3")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_duplicates_and_forgeries_in_the_stream(follower: Follower, deployment: Deployment) -> None:
    """Entries beside the sequence, of another place, unreadable, empty: the store's log is followed instead."""
    first = deployment.put("session-0", "m1")
    partition = deployment.partition("session-0")
    deployment.redis.xadd(keys.events(partition), {"event": encode_event(first)}, id="1-1")
    for message_id, data in (("m2", encode_event(first)), ("m3", b"garbage"), ("m4", b"")):
        deployment.put("session-0", message_id, publish=False)
        deployment.publish(partition, deployment.sequences[partition], data)
    deployment.put("session-0", "m5", publish=False)
    deployment.redis.xadd(keys.events(partition), {"other": b"x"}, id=f"{deployment.sequences[partition]}-0")
    deployment.put("session-0", "m6")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_reordered_events(follower: Follower, deployment: Deployment) -> None:
    """The later event comes first, the earlier one never: both are applied once, in the store's order."""
    deployment.put("session-0", "m1", publish=False)
    deployment.put("session-0", "m2")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")


def test_events_that_were_never_committed(follower: Follower, deployment: Deployment) -> None:
    """An entry far past the store's head is no event: the stream is dropped, so that real ones fit in again."""
    deployment.put("session-0", "m1")
    settle(follower, deployment)
    partition = deployment.partition("session-0")
    forged = deployment.put("session-0", "m2", publish=False)
    deployment.publish(partition, 10**12, encode_event(forged))
    settle(follower, deployment)
    follower.step(1)
    assert not deployment.redis.exists(keys.events(partition))
    deployment.put("session-0", "m3")
    settle(follower, deployment)
    assert_equals_store(deployment, "session-0")
