"""One follower at work: the first that comes, as long as it renews its lease; others stand by."""

import logging
import time
from uuid import uuid4

from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.scripting import Script

_log = logging.getLogger(__name__)
_hold = Script("projections", "hold")
_leave = Script("projections", "leave")

_LOOKS_PER_TTL = 5


class FollowerLease:
    """Held and renewed by the follower's own thread: one that hangs loses it. For one thread.

    It only spares the others the same work. Nothing depends on it: checkpoints move by compare-and-set, so of two
    that believe to hold it one is refused, and reads where it is again (`projections/scripts/store.lua`).
    """

    def __init__(self, redis: Redis, ttl_s: float) -> None:
        """`redis` is the follower's client. `ttl_s`: seconds after which one that is silent is taken over."""
        self._redis = redis
        ttl_ms = int(1000 * ttl_s)
        self._ttl_ms = ttl_ms
        self._token = f"{uuid4().hex}:{ttl_ms}"
        self._holds: bool | None = None
        self._next_look = 0.0
        self.pause_s = ttl_s / _LOOKS_PER_TTL
        """Seconds between two looks at it, and the most that its holder waits for anything."""

    def holds(self) -> bool:
        """Whether this follower is to work now. Asks the server, and renews, five times a TTL.

        Raises:
            RedisError: the server could not be asked.
        """
        now = time.monotonic()
        if now >= self._next_look:
            held = _hold(self._redis, (keys.PROJECTOR,), (self._token, self._ttl_ms)) == 1
            if held != self._holds:
                _log.info("this projector follows" if held else "another projector follows, standing by")
            self._holds = held
            self._next_look = now + self.pause_s
        return bool(self._holds)

    def look_again(self) -> None:
        """What was known of the server counts no more."""
        self._next_look = 0.0

    def leave(self) -> None:
        """Let another follower begin at once."""
        try:
            _leave(self._redis, (keys.PROJECTOR,), (self._token,))
        except RedisError as error:
            _log.warning("left without saying so, the lease runs out by itself: %s", error)
