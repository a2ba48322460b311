"""Revisions that somebody is about to be told of, noted beside the cached lists (docs/wire-format.md, "Cached lists").

Acknowledging does the same in its own script (`worker/scripts/finish.lua`); this is for whoever tells of
commits in another way.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from redis import Redis

from feedback import keys
from feedback.events import decode_event
from feedback.scripting import Script

_note = Script("feedback", "note")


def note_revisions(redis: Redis, revisions: Mapping[str, int]) -> None:
    """Note committed revisions by Session id: no list that is read without the store is older from here on.

    Safe to repeat; a revision never goes back.

    Raises:
        RedisError: some may have been noted. Tell nobody yet.
    """
    told = {session_id: revision for session_id, revision in revisions.items() if revision > 0}
    if told:
        _note(redis, [keys.list_cache(session_id) for session_id in told], (keys.CACHE_TTL_S, *told.values()))


def revisions_in(events: Iterable[bytes]) -> dict[str, int]:
    """Session id -> the highest revision that these encoded events tell; what is not readable tells none."""
    revisions: dict[str, int] = {}
    for data in events:
        with suppress(msgspec.MsgspecError):
            event = decode_event(data)
            revisions[event.session_id] = max(event.revision, revisions.get(event.session_id, 0))
    return revisions
