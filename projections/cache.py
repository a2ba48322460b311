"""Cached lists and checkpoints in Redis. They change together, in one script (`scripts/store.lua`).

An *era* is a token that every entry bears. A new era makes all entries absent at once: what the
projection does when it cannot know which Sessions it missed changes of.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from msgspec import Struct
from redis import Redis
from redis.exceptions import ResponseError

from feedback import keys
from feedback.partitions import PartitionId
from feedback.scripting import Script
from projections.bodies import BodyCodec, BodyInvalid
from projections.fold import CachedList

_log = logging.getLogger(__name__)
_store = Script("projections", "store")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")


class Advance(Struct, frozen=True):
    """A partition's checkpoint: the sequence it must be at, and the one it moves to."""

    partition: PartitionId
    expected: int
    reached: int


class Snapshot(Struct, frozen=True):
    """What is cached of some Sessions: session id -> view. A missing key is a miss."""

    era: bytes
    views: Mapping[str, CachedList]


class ListCache:
    """The cache through one Redis client; for one thread. Every method may raise `RedisError`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._codec = BodyCodec()

    def read(self, session_ids: Sequence[str]) -> Snapshot:
        """Read the era, then the entries, in one round trip. An entry that is not a list of its Session is dropped."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.execute_command("GET", keys.LIST_ERA)
        for session_id in session_ids:
            pipeline.execute_command("HMGET", keys.list_cache(session_id), "era", "revision", "body")
        era, *entries = pipeline.execute(raise_on_error=False)
        if isinstance(era, Exception):
            raise era
        if era is None:
            return Snapshot(self._begin_era(), {})
        views: dict[str, CachedList] = {}
        poisoned: list[str] = []
        for session_id, entry in zip(session_ids, entries, strict=True):
            try:
                view = self._view(session_id, entry, era)
            except BodyInvalid as error:
                _log.warning("poisoned cache entry dropped key=%s reason=%s", keys.list_cache(session_id), error)
                poisoned.append(session_id)
            else:
                if view is not None:
                    views[session_id] = view
        self.drop(poisoned)
        return Snapshot(era, views)

    def store(self, era: bytes, views: Iterable[CachedList], advances: Sequence[Advance] = ()) -> bool:
        """Store views that were made in `era`, together with the advances of one generation's checkpoints.

        A view replaces only an older one. False, and nothing written: the era ended meanwhile, or a
        checkpoint is not the expected one (another projector was faster, or Redis lost it).
        """
        generation = advances[0].partition.generation if advances else 0
        names = [keys.LIST_ERA, keys.checkpoint(generation)]
        args: list[bytes | str | int] = [era, keys.CACHE_TTL_S, len(advances)]
        for advance in advances:
            args += (advance.partition.number, advance.expected, advance.reached)
        for view in views:
            names.append(keys.list_cache(view.session_id))
            args += (view.revision, self._codec.encode(view) or b"")
        return bool(_store(self._redis, names, args))

    def drop(self, session_ids: Iterable[str]) -> None:
        """Forget these Sessions' entries; the next reader or event makes them anew."""
        if names := [keys.list_cache(session_id) for session_id in session_ids]:
            self._redis.execute_command("DEL", *names)

    def invalidate(self) -> bytes:
        """Begin a new era, and give its token: whatever was cached before is absent from now on."""
        era = uuid4().hex.encode()
        self._redis.execute_command("SET", keys.LIST_ERA, era)
        return era

    def checkpoints(self, generation: int) -> dict[int, int]:
        """Partition number -> sequence. Fields that are neither are dropped."""
        stored = self._redis.execute_command("HGETALL", keys.checkpoint(generation))
        valid = {int(number): int(text) for number, text in stored.items() if _are_numbers(number, text)}
        if garbage := [number for number, text in stored.items() if not _are_numbers(number, text)]:
            _log.warning("poisoned checkpoints dropped generation=%d count=%d", generation, len(garbage))
            self._redis.execute_command("HDEL", keys.checkpoint(generation), *garbage)
        return valid

    def forget_checkpoints(self, generation: int) -> None:
        """A generation that has ended needs no checkpoints."""
        self._redis.execute_command("DEL", keys.checkpoint(generation))

    def _begin_era(self) -> bytes:
        era = uuid4().hex.encode()
        self._redis.execute_command("SET", keys.LIST_ERA, era, "NX")
        standing: bytes | None = self._redis.execute_command("GET", keys.LIST_ERA)
        return standing or era

    def _view(self, session_id: str, entry: Any, era: bytes) -> CachedList | None:
        """The view in an entry's fields, None for an absent one.

        Raises:
            BodyInvalid: it is not a list of this Session.
        """
        if isinstance(entry, Exception):
            if is_wrong_type(entry):
                raise BodyInvalid("not a hash")
            raise entry
        stamp, revision, body = entry
        if stamp != era or body is None:
            return None
        view = self._codec.decode(body)
        if view.session_id != session_id:
            raise BodyInvalid("another Session's")
        if revision != str(view.revision).encode():
            raise BodyInvalid(f"revision {revision!r} with a body of {view.revision}")
        return view


def _are_numbers(*texts: bytes) -> bool:
    """Whether each is spelled as we write numbers: the script compares texts."""
    return all(_NUMBER.fullmatch(text) for text in texts)


def is_wrong_type(error: Exception) -> bool:
    """Whether the server says that a key is of another type than its command wants."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


def drop_foreign(redis: Redis, expected: Mapping[str, bytes]) -> None:
    """Remove keys of ours that somebody put another type under (key -> type as TYPE spells it).

    All of them are made anew by whoever needs them.
    """
    pipeline = redis.pipeline(transaction=False)
    for key in expected:
        pipeline.execute_command("TYPE", key)
    for (key, kind), found in zip(expected.items(), pipeline.execute(), strict=True):
        if found not in (kind, b"none"):
            _log.warning("key of a foreign type dropped key=%s type=%s", key, found)
            redis.execute_command("DEL", key)
