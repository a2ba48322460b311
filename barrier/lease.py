"""One agent for a host: the first that comes serves, as long as its heartbeat goes on; others wait as a standby."""

import logging
import threading
import time

from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.agent_desk import registration_from
from feedback.connection import is_passing
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import SettingsInvalid
from feedback.evidence import Registration
from feedback.scripting import Script

logger = logging.getLogger(__name__)

_hold = Script("feedback", "agent_hold")
_leave = Script("feedback", "agent_leave")

_BEATS_PER_TTL = 5
# The lease counts for this part of its TTL only, on the monotonic clock from before the renewal was sent.
_TRUSTED_PART = 0.8


class AgentLease:
    """Registers an agent in the background, or waits until the one that serves is gone.

    It only keeps two from answering the same questions. Nothing depends on it: evidence is matched with the request
    that it answers, and true whoever gives it.
    """

    def __init__(self, redis: Redis, host: str, me: Registration, ttl_s: float) -> None:
        """`redis` is used by this object alone; its owner closes it, after `stop`."""
        self._redis = redis
        self._host = host
        self._me = me
        self._ttl_s = ttl_s
        self._trusted_until = 0.0
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent-lease", daemon=True)
        self.failure: Exception | None = None
        """Why the thread ended, if it did on its own."""

    def serves(self) -> bool:
        """Whether this agent is the one of its host, as far as can be known."""
        return time.monotonic() < self._trusted_until

    def wait(self, timeout_s: float) -> None:
        """Return when this agent may have become the one that serves, or after so long."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def start(self) -> None:
        """Register, or see who serves, in the caller's thread; then go on alone. A server may be a little late.

        Raises:
            SettingsInvalid: an agent of this host serves another log root.
            RedisError: the server refuses for good.
        """
        try:
            self._beat()
        except RedisError as error:
            if not is_passing(error):
                raise
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and let another agent serve at once."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            _leave(self._redis, (keys.agent(self._host),), (self._me.agent_id,))
        except RedisError as error:
            logger.warning("left without saying so; the lease runs out by itself: %s", error)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._ttl_s / _BEATS_PER_TTL):
                try:
                    self._beat()
                except RedisError as error:
                    logger.warning("heartbeat failed: %s", error)
                    # After a failover the old connection still talks to the former primary.
                    self._redis.connection_pool.disconnect()
        except Exception as error:  # noqa: BLE001 - handed to the agent, which ends with it
            self.failure = error
            self._changed.set()

    def _beat(self) -> None:
        sent = time.monotonic()
        args = (self._me.agent_id, self._me.root, int(1000 * self._ttl_s))
        serving = registration_from(_hold(self._redis, (keys.agent(self._host),), args))
        mine = serving is not None and serving.agent_id == self._me.agent_id
        if mine and not self.serves():
            reach(CrashPoint.AFTER_REGISTERING)
            logger.info("serving host=%s root=%s", self._host, self._me.root)
        elif serving is not None and serving.root != self._me.root:
            raise SettingsInvalid(
                f"host: the agent of {self._host} serves {serving.root}, this one would serve {self._me.root}; "
                "give each log root a host name of its own"
            )
        self._trusted_until = sent + _TRUSTED_PART * self._ttl_s if mine else 0.0
        if mine:
            self._changed.set()
