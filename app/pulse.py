"""The pulse of `up`'s own worker: one that stands still is killed, and starts again like any that ended.

A worker that is stopped in the midst of a commit holds SQLite's write lock: no fence and no lease helps the others,
who wait until it thaws or is gone. It cannot watch itself, so whoever started it does.
"""

import logging
import socket
from contextlib import suppress

from redis.exceptions import RedisError

from app.processes import Child
from feedback import keys
from feedback.connection import connect

_log = logging.getLogger(__name__)

PATIENCE_TTLS = 3
"""Lease TTLs without a heartbeat, over which the server answered: a worker's partitions are others' after one."""
_LOOKS_PER_TTL = 2
_ASK_TIMEOUT_S = 1.0


class Pulse:
    """Looks at one worker's heartbeat on the server. For one thread; `close` it in the end."""

    def __init__(self, worker: Child, redis_url: str, lease_ttl_s: float) -> None:
        self._worker = worker
        self._redis = connect(redis_url, timeout_s=_ASK_TIMEOUT_S)
        self._every_s = lease_ttl_s / _LOOKS_PER_TTL
        self._pid: int | None = None
        self._worker_id: str | None = None
        self._beat: bytes | None = None
        self._silent = 0
        self.next_look = 0.0
        """When `look` has something to do, on the monotonic clock."""

    def look(self, now: float) -> None:
        """Kill the worker if it is there and was silent for too long.

        Only what was seen beating is judged, and only by looks that the server answered: a server that is out of
        reach silences everybody. Nor does time count in which this process stood still itself.
        """
        if now < self.next_look:
            return
        self.next_look = now + self._every_s
        if self._worker.pid != self._pid:
            self._pid, self._worker_id, self._silent = self._worker.pid, None, 0
        try:
            silent = self._is_silent()
        except RedisError:
            silent = False
        self._silent = self._silent + 1 if silent else 0
        if self._silent > PATIENCE_TTLS * _LOOKS_PER_TTL:
            _log.warning("stands still, killed process=%s pid=%s", self._worker.name, self._pid)
            self._worker.kill()
            self._silent = 0

    def close(self) -> None:
        """End the connection."""
        with suppress(RedisError):
            self._redis.close()

    def _is_silent(self) -> bool:
        """Whether a worker that had a heartbeat has the same, or none, as at the last look."""
        if self._worker_id is None:
            self._worker_id = self._name_of_worker()
            return False
        beat = self._redis.get(keys.worker_session(self._worker_id))
        last, self._beat = self._beat, beat if isinstance(beat, bytes) else None
        return self._beat in {None, last}

    def _name_of_worker(self) -> str | None:
        """The id under which the process is registered, if it is yet (`worker.process`)."""
        ours = f"{socket.gethostname()}-{self._pid}-".encode()
        members = (member for member in self._redis.smembers(keys.WORKERS) if isinstance(member, bytes))
        return next((member.decode() for member in members if member.startswith(ours)), None)
