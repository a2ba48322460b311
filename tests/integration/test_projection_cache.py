"""The cache's one script and its reader: atomic with the checkpoint, never backward, poison is a miss."""

from itertools import chain

import msgspec
import pytest
import zstandard
from redis import Redis

from feedback import keys, lists
from feedback.lists import CachedList
from feedback.model import Item
from feedback.partitions import PartitionId
from projections import cache as cache_module
from projections.cache import Advance, ListCache
from tests.integration.projecting import LIFE, NEXT_LIFE

PARTITION = PartitionId(1, 0)


@pytest.fixture
def cache(redis_client: Redis) -> ListCache:
    return ListCache(redis_client)


def view(revision: int, session_id: str = "s1", note: str | None = None) -> CachedList:
    item = Item(message_id="m", rating="positive", note=note, version=f"v{revision}", created_at=1, updated_at=revision)
    return CachedList(session_id=session_id, identity=LIFE, revision=revision, items=(item,))


def stored(cache: ListCache, revision: int) -> bytes:
    """Cache one view; the era."""
    era = cache.read(()).era
    assert cache.store(era, [view(revision)])
    return era


def test_views_and_checkpoint_are_stored_together(cache: ListCache) -> None:
    """Stored whole, with what it brings the checkpoint to."""
    era = cache.read(()).era
    assert cache.store(era, [view(1), view(1, "s2", note="x" * 5000)], [Advance(PARTITION, 0, 7)])
    assert cache.read(["s1", "s2", "s3"]).views == {"s1": view(1), "s2": view(1, "s2", note="x" * 5000)}
    assert cache.checkpoints(1) == {0: 7}


def test_a_moved_checkpoint_refuses_everything(cache: ListCache) -> None:
    """Neither views nor the other checkpoints are written: a second projector cannot apply twice or go back."""
    era = cache.read(()).era
    assert cache.store(era, (), [Advance(PARTITION, 0, 7)])
    moves = [Advance(PartitionId(1, 1), 0, 3), Advance(PARTITION, 6, 8)]
    assert not cache.store(era, [view(1)], moves)
    assert cache.checkpoints(1) == {0: 7}
    assert cache.read(["s1"]).views == {}


def test_repeating_a_stored_round_changes_nothing(cache: ListCache) -> None:
    """When the answer got lost, the repeated call is refused, and what it wrote stands."""
    era = cache.read(()).era
    round_ = ([view(1)], [Advance(PARTITION, 0, 1)])
    assert cache.store(era, *round_)
    assert not cache.store(era, *round_)
    assert cache.checkpoints(1) == {0: 1}
    assert cache.read(["s1"]).views == {"s1": view(1)}


def test_an_older_or_equal_view_does_not_replace(cache: ListCache) -> None:
    """A fill that was overtaken loses."""
    era = stored(cache, 5)
    assert cache.store(era, [view(4)])
    assert cache.read(["s1"]).views == {"s1": view(5)}
    assert cache.store(era, [view(6)])
    assert cache.read(["s1"]).views == {"s1": view(6)}


def test_the_latest_revision_never_goes_back(cache: ListCache, redis_client: Redis) -> None:
    """Whoever caches a list notes its revision, unless a later one is known; no era ends that, and no refusal."""
    name = keys.list_cache("s1")
    era = stored(cache, 3)
    assert cache.read(["s1", "s2"]).latest == {"s1": 3}
    redis_client.hset(name, "latest", 5)
    assert cache.store(era, [view(4)])
    assert redis_client.hget(name, "latest") == b"5"
    new = cache.invalidate()
    assert cache.store(new, [view(2)])
    assert (cache.read(["s1"]).views, cache.read(["s1"]).latest) == ({"s1": view(2)}, {"s1": 5})
    redis_client.hdel(name, "latest")
    assert cache.store(new, [view(1)])
    assert cache.read(["s1"]).latest == {"s1": 1}, "an entry that lost it gets it again, though the list stays"


def test_a_view_is_left_out_when_the_noted_revision_was_lost_meanwhile(cache: ListCache, redis_client: Redis) -> None:
    """It may be older than what callers were told since. Who fills the cache hears of it; a checkpoint moves on."""
    era = stored(cache, 3)
    noted = cache.read(["s1"]).latest
    redis_client.delete(keys.list_cache("s1"))
    assert not cache.store(era, [view(4)], noted=noted)
    assert cache.store(era, [view(4)], [Advance(PARTITION, 0, 1)], noted=noted)
    assert (cache.read(["s1"]).views, cache.checkpoints(1)) == ({}, {0: 1})
    assert cache.store(era, [view(4)])


def test_an_era_is_of_the_server_as_it_is(cache: ListCache, redis_client: Redis) -> None:
    """One of another server, or of this one before it lost its memory, is renewed; its own is kept."""
    era = stored(cache, 3)
    cache.renew()
    assert cache.read(["s1"]).era == era
    redis_client.set(keys.LIST_ERA, b"0" * 40 + b":" + era.partition(b":")[2])
    cache.renew()
    snapshot = cache.read(["s1"])
    assert (snapshot.era.partition(b":")[0], snapshot.views) == (era.partition(b":")[0], {})


def test_many_views_go_in_several_requests(
    cache: ListCache, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of any size would hold the server up for everybody. The checkpoint moves with the last."""
    monkeypatch.setattr(cache_module, "_MOST_STORED_BYTES", 100)
    views = {f"s{number}": view(1, f"s{number}") for number in range(5)}
    era = cache.read(()).era
    redis_client.config_resetstat()
    assert cache.store(era, views.values(), [Advance(PARTITION, 0, 7)])
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 5
    assert (cache.read(tuple(views)).views, cache.checkpoints(1)) == (views, {0: 7})
    assert not cache.store(era, [view(2, "s0"), view(2, "s1")], [Advance(PARTITION, 3, 8)])
    cache.invalidate()
    assert not cache.store(era, [view(3, "s0"), view(3, "s1")])


def test_a_new_era_makes_everything_absent(cache: ListCache) -> None:
    """Entries of the old era are misses, and nothing made in the old era can be stored any more."""
    era = stored(cache, 5)
    new = cache.invalidate()
    assert cache.read(["s1"]).views == {}
    assert not cache.store(era, [view(9)])
    assert cache.store(new, [view(2)])
    assert cache.read(["s1"]).views == {"s1": view(2)}


def test_a_lost_era_is_a_new_one(cache: ListCache, redis_client: Redis) -> None:
    """Entries do not come back by the era's loss."""
    era = stored(cache, 5)
    redis_client.delete(keys.LIST_ERA)
    snapshot = cache.read(["s1"])
    assert snapshot.views == {}
    assert snapshot.era != era
    assert cache.read(["s1"]).era == snapshot.era


def test_entries_expire_and_checkpoints_stay(cache: ListCache, redis_client: Redis) -> None:
    """Only lists have a TTL."""
    assert cache.store(cache.read(()).era, [view(1)], [Advance(PARTITION, 0, 1)])
    assert 0 < redis_client.ttl(keys.list_cache("s1")) <= keys.CACHE_TTL_S
    assert redis_client.ttl(keys.checkpoint(1)) == -1
    assert redis_client.ttl(keys.LIST_ERA) == -1


def test_a_list_too_long_is_not_cached(cache: ListCache, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an older entry does not survive it."""
    era = stored(cache, 1)
    monkeypatch.setattr(lists, "MAX_BODY_BYTES", 1000)
    assert cache.store(era, [view(2, note="x" * 2000)])
    assert redis_client.hgetall(keys.list_cache("s1")) == {b"latest": b"2"}


def _bomb() -> bytes:
    return b"\x01" + zstandard.ZstdCompressor().compress(bytes(lists.MAX_BODY_BYTES + 1))


def _sizeless() -> bytes:
    return b"\x01" + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000))


def _encoded(entry: CachedList) -> bytes:
    return b"\x00" + msgspec.msgpack.encode(entry)


POISON: dict[str, dict[str, bytes | int]] = {
    "garbage": {"revision": 1, "body": b"\xff\x00garbage"},
    "empty": {"revision": 1, "body": b""},
    "unknown codec": {"revision": 1, "body": b"\x07abc"},
    "not msgpack": {"revision": 1, "body": b"\x00\xc1"},
    "deep": {"revision": 1, "body": b"\x00" + b"\x91" * 100_000},
    "bomb": {"revision": 1, "body": _bomb()},
    "no size": {"revision": 1, "body": _sizeless()},
    "broken frame": {"revision": 1, "body": b"\x01\x28\xb5\x2f\xfd"},
    "another Session": {"revision": 1, "body": _encoded(view(1, "s2"))},
    "schema of tomorrow": {"revision": 1, "body": _encoded(msgspec.structs.replace(view(1), schema=2))},
    "revision below zero": {"revision": -1, "body": _encoded(view(-1))},
    "absurd revision": {"revision": 2**60, "body": _encoded(view(2**60))},
    "revisions differ": {"revision": 9, "body": _encoded(view(1))},
    "revision of words": {"revision": b"many", "body": _encoded(view(1))},
    "latest of words": {"revision": 1, "latest": b"many", "body": _encoded(view(1))},
    "absurd latest": {"revision": 1, "latest": 2**60, "body": _encoded(view(1))},
}


@pytest.mark.parametrize("name", POISON)
def test_poison_is_a_miss_and_does_not_last(cache: ListCache, redis_client: Redis, name: str) -> None:
    """Whatever stands in an entry: it is a miss, never an error, and the true list replaces it."""
    era = cache.read(()).era
    fields = chain.from_iterable(POISON[name].items())
    redis_client.execute_command("HSET", keys.list_cache("s1"), "era", era, *fields)
    assert cache.read(["s1"]).views == {}
    assert cache.store(era, [view(3)])
    assert cache.read(["s1"]).views == {"s1": view(3)}


def test_an_entry_of_another_type_is_a_miss(cache: ListCache, redis_client: Redis) -> None:
    """Replaced by readers that met it, and by writers that did not."""
    redis_client.set(keys.list_cache("s1"), "x")
    redis_client.set(keys.list_cache("s2"), "x")
    snapshot = cache.read(["s1"])
    assert snapshot.views == {}
    assert cache.store(snapshot.era, [view(1), view(1, "s2")])
    assert set(cache.read(["s1", "s2"]).views) == {"s1", "s2"}


def test_checkpoints_that_are_none_are_dropped(cache: ListCache, redis_client: Redis) -> None:
    """Words, signs, leading zeros, endless digits: as if they were not there."""
    redis_client.hset(
        keys.checkpoint(1),
        mapping={"0": 4, "1": "x", "2": -1, "3": "007", "4": "9" * 5000, "x": 1, "٣": 1, "9" * 19: 1},
    )
    assert cache.checkpoints(1) == {0: 4}
    assert redis_client.hkeys(keys.checkpoint(1)) == [b"0"]


def test_a_body_says_which_life_it_is_of(cache: ListCache) -> None:
    """The identity comes back as it was stored."""
    era = cache.read(()).era
    other = msgspec.structs.replace(view(2), identity=NEXT_LIFE)
    assert cache.store(era, [other])
    assert cache.read(["s1"]).views["s1"].identity == NEXT_LIFE
