"""Finding the live owners of Sessions: for workers, which ask them to flush, and projectors, which ask who exists."""

import logging
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from redis import Redis

from feedback import keys
from feedback.flushing import LiveOwner
from feedback.model import MOST_MILLISECONDS, SessionIdentity
from feedback.scripting import Script

logger = logging.getLogger(__name__)

Registration: TypeAlias = Sequence[bytes | None] | None
"""Owner, Session id, created_at and cwd as they stand in Redis; None when no live owner is registered."""

_owners_of = Script("feedback", "owners_of", read_only=True)


def live_owners(redis: Redis, session_ids: Iterable[str]) -> dict[str, LiveOwner]:
    """The owners of those of these Sessions that some host holds open right now, in one round trip.

    Raises:
        RedisError: the server could not say.
    """
    asked = tuple(session_ids)
    if not asked:
        return {}
    replies = _owners_of(redis, [keys.live(session_id) for session_id in asked], (keys.OWNER_PREFIX,))
    found = (owner_from(session_id, reply) for session_id, reply in zip(asked, replies, strict=True))
    return {owner.session_id: owner for owner in found if owner is not None}


def owner_from(session_id: str, registration: Registration) -> LiveOwner | None:
    """A registration as its owner; None when there is none, or what stands there (anybody may write it) is not one."""
    if registration is None:
        return None
    owner, session, created_at, cwd = registration
    try:
        if owner is None or session is None or created_at is None or session.decode() != session_id:
            return None
        identity = SessionIdentity(created_at=_milliseconds(created_at), cwd=None if cwd is None else cwd.decode())
        return LiveOwner(owner_id=owner.decode(), session_id=session_id, identity=identity)
    except ValueError:
        logger.warning("a live Session's registration is malformed key=%s", keys.live(session_id))
        return None


def _milliseconds(text: bytes) -> int:
    value = int(text)
    if not 0 <= value <= MOST_MILLISECONDS:
        raise ValueError("not a time that a header can have")
    return value
