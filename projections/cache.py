"""Cached lists and checkpoints in Redis. They change together, in one script (`scripts/store.lua`).

An *era* is a token that every entry bears. A new era makes all entries absent at once: what the
projection does when it cannot know which Sessions it missed changes of. It begins with the server's
replication id, which changes with every restart and failover: who reads lists without the store trusts
only those of an era that began on the server as it is (`feedback/scripts/read_list.lua`).

An entry also bears its Session's *latest* revision, noted by whoever acknowledges a command, and by
whoever caches a list. Only a list of that revision is current to who reads without the store.
"""

import logging
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from msgspec import Struct
from redis import Redis
from redis.exceptions import ResponseError

from feedback import keys
from feedback.lists import MAX_REVISION, BodyInvalid, CachedList, ListCodec
from feedback.noting import note_revisions
from feedback.partitions import PartitionId
from feedback.scripting import Script

_log = logging.getLogger(__name__)
_read = Script("projections", "read")
_store = Script("projections", "store")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_MOST_STORED_BYTES = 4 * 2**20
"""Of bodies in one request, or one body that is larger: a server takes neither a request nor a pause of any size."""


class Advance(Struct, frozen=True):
    """A partition's checkpoint: the sequence it must be at, and the one it moves to."""

    partition: PartitionId
    expected: int
    reached: int


class Snapshot(Struct, frozen=True):
    """What is cached of some Sessions: views and noted latest revisions by session id. A missing key is a miss."""

    era: bytes
    views: Mapping[str, CachedList]
    latest: Mapping[str, int]


class ListCache:
    """The cache through one Redis client; for one thread. Every method may raise `RedisError`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._codec = ListCodec()

    def read(self, session_ids: Sequence[str]) -> Snapshot:
        """Read the era and the entries in one round trip. An entry that is not a list of its Session is dropped."""
        names = [keys.LIST_ERA, *map(keys.list_cache, session_ids)]
        era, *entries = _read(self._redis, names, ())
        views: dict[str, CachedList] = {}
        latest: dict[str, int] = {}
        poisoned: list[str] = []
        for session_id, entry in zip(session_ids, entries, strict=True):
            try:
                noted, view = self._view(session_id, entry)
            except BodyInvalid as error:
                _log.warning("poisoned cache entry dropped key=%s reason=%s", keys.list_cache(session_id), error)
                poisoned.append(session_id)
                continue
            if noted is not None:
                latest[session_id] = noted
            if view is not None:
                views[session_id] = view
        self.drop(poisoned)
        return Snapshot(self._begin_era() if era is None else era, views, latest)

    def store(
        self, era: bytes, views: Iterable[CachedList], advances: Sequence[Advance] = (), *, noted: Container[str] = ()
    ) -> bool:
        """Store views that were made in `era`, then the advances of one generation's checkpoints.

        A view replaces only an older one; of a Session that is in `noted`, only if its entry bears a latest revision,
        as it did when the view's making began. The checkpoints move together with the last views, so that they are
        never ahead of them.

        False: the era ended meanwhile, or a checkpoint is not the expected one (another projector was faster, or
        Redis lost it), and the checkpoints are where they were; or, without any, a view was not stored that should be.
        """
        part: list[str | bytes | int] = []
        names: list[str] = []
        size = 0
        for view in views:
            body = self._codec.encode(view) or b""
            if names and size + len(body) > _MOST_STORED_BYTES:
                if not self._stored(era, names, part, ()) and not advances:
                    return False
                part, names, size = [], [], 0
            names.append(keys.list_cache(view.session_id))
            part += (view.revision, body, int(view.session_id in noted))
            size += len(body)
        return self._stored(era, names, part, advances)

    def note(self, revisions: Mapping[str, int]) -> None:
        """Note revisions that somebody is about to be told of, by Session id."""
        note_revisions(self._redis, revisions)

    def drop(self, session_ids: Iterable[str]) -> None:
        """Forget these Sessions' entries; the next reader or event makes them anew."""
        if names := [keys.list_cache(session_id) for session_id in session_ids]:
            self._redis.execute_command("DEL", *names)

    def invalidate(self) -> bytes:
        """Begin a new era, and give its token: whatever was cached before is absent from now on."""
        era = self._new_era()
        self._redis.execute_command("SET", keys.LIST_ERA, era)
        return era

    def renew(self) -> None:
        """Begin a new era if the standing one is not of the server as it is now: it may have lost what was noted."""
        era = self._redis.execute_command("GET", keys.LIST_ERA)
        if era is not None and era.partition(b":")[0] != self._history():
            _log.warning("the server is another one, or lost its memory: all cached lists are made anew")
            self.invalidate()

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

    def _stored(
        self, era: bytes, names: Sequence[str], part: Sequence[str | bytes | int], advances: Sequence[Advance]
    ) -> bool:
        generation = advances[0].partition.generation if advances else 0
        moves: list[int] = []
        for advance in advances:
            moves += (advance.partition.number, advance.expected, advance.reached)
        script_keys = (keys.LIST_ERA, keys.checkpoint(generation), *names)
        reply = _store(self._redis, script_keys, (era, keys.CACHE_TTL_S, len(advances), *moves, *part))
        # A view left out costs its next reader a miss; only who fills the cache for a reader needs to know.
        return bool(reply != 0 if advances else reply == 1)

    def _begin_era(self) -> bytes:
        era = self._new_era()
        self._redis.execute_command("SET", keys.LIST_ERA, era, "NX")
        standing: bytes | None = self._redis.execute_command("GET", keys.LIST_ERA)
        return standing or era

    def _new_era(self) -> bytes:
        return self._history() + b":" + uuid4().hex.encode()

    def _history(self) -> bytes:
        """The id of the history that the server's data have as long as it is the primary, as hexadecimal digits."""
        try:
            told = self._redis.execute_command("INFO", "replication")
        except ResponseError as error:
            if "unknown command" not in str(error):
                raise
            return b""  # an imitation of a server, without a replication
        return str(told["master_replid"]).encode()

    def _view(self, session_id: str, entry: Any) -> tuple[int | None, CachedList | None]:
        """The latest revision and the view in an entry's fields, None for what is absent.

        Raises:
            BodyInvalid: it is not a list of this Session.
        """
        if not isinstance(entry, list):
            raise BodyInvalid(f"not an entry: {entry!r:.100}")
        revision, latest, body = entry
        if latest is not None and not (_are_numbers(latest) and int(latest) <= MAX_REVISION):
            raise BodyInvalid(f"latest revision {latest!r:.100}")
        noted = None if latest is None else int(latest)
        return noted, None if body is None else self._codec.decode(session_id, revision, body)


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
