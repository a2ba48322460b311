"""Commands that a worker has claimed and cannot keep: they wait in Redis alone, each Session's in order.

A Session whose barrier goes on failing may have any number of commands. Its worker holds as many as it may; the
rest is set aside until their turn comes, so that the partition goes on claiming for all others. Whoever takes
the partition over finds them at the head of the queue, behind what was claimed.
"""

from collections.abc import Sequence
from typing import Any

from redis import Redis

from feedback import keys
from feedback.commands import MAX_COMMAND_BYTES
from feedback.partitions import PartitionId
from feedback.scripting import Script

_set_aside = Script("worker", "set_aside")
_resume = Script("worker", "resume")
_put_back = Script("worker", "put_back")

_CHUNK = 1000
_MAX_BYTES = 2**20


class Aside:
    """What was set aside of the partitions that one worker owns. Every method raises `redis.exceptions.RedisError`."""

    def __init__(self, redis: Redis, worker_id: str) -> None:
        self._redis = redis
        self._worker_id = worker_id

    def add(self, partition: PartitionId, commands: Sequence[tuple[str, bool, bytes]]) -> bool:
        """Set claimed commands aside, given as Session id, whether before what is there of it, and job id.

        False, and nothing was done, when the partition is another worker's.
        """
        names = (keys.owners(partition.generation), keys.claimed(partition), keys.aside(partition))
        for start in range(0, len(commands), _CHUNK):
            args: list[str | int | bytes] = [self._worker_id, partition.number, keys.RQ_JOB_PREFIX]
            for session_id, before, job_id in commands[start : start + _CHUNK]:
                args += (keys.session_digest(session_id), "<" if before else ">", job_id)
            if not _set_aside(self._redis, names, args):
                return False
        return True

    def resume(self, partition: PartitionId, session_id: str, most: int) -> tuple[bool, list[Any]] | None:
        """Claim up to `most` commands of a Session again: whether more of it is left, and id, data in turns.

        None when the partition is another worker's.
        """
        names = (keys.owners(partition.generation), keys.claimed(partition), keys.aside(partition))
        bounds = (most, _MAX_BYTES, 2 * MAX_COMMAND_BYTES)
        args = (self._worker_id, partition.number, keys.RQ_JOB_PREFIX, keys.session_digest(session_id), *bounds)
        reply = _resume(self._redis, names, args)
        return None if reply is None else (bool(reply[0]), reply[1:])

    def put_back(self, partition: PartitionId) -> bool:
        """Put everything back at the head of the queue; False when the partition is another worker's."""
        names = (keys.owners(partition.generation), keys.aside(partition), keys.queue(partition))
        left = 1
        while left:
            left = _put_back(self._redis, names, (self._worker_id, partition.number, _CHUNK))
            if left is None:
                return False
        return True

    def has(self, partition: PartitionId, session_id: str) -> bool:
        """Whether commands of this Session are set aside, whoever owns the partition."""
        digest = keys.session_digest(session_id)
        command = ("ZRANGEBYLEX", keys.aside(partition), f"[{digest}:", f"({digest};", "LIMIT", 0, 1)
        return bool(self._redis.execute_command(*command))
