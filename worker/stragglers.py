"""Jobs that turn up on the queues of a retired generation: moved to where their Sessions are served now.

Clients never put them there, but RQ's tools do: a job is requeued to the queue that it came from.
"""

import logging
from collections.abc import Sequence

from redis import Redis

from feedback import keys, wire
from feedback.commands import MAX_COMMAND_BYTES
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import InvalidRequest
from feedback.partitions import PartitionId, Topology
from feedback.scripting import Script

logger = logging.getLogger(__name__)

_stragglers = Script("worker", "stragglers")
_move = Script("worker", "move")

_MOST = 256


class Stragglers:
    """The queues of the generation before `topology`, once that is retired."""

    def __init__(self, redis: Redis, retired: Sequence[PartitionId], topology: Topology) -> None:
        self._redis = redis
        self._retired = retired
        self._topology = topology

    def move(self) -> None:
        """Move what lies there, in order; any number of workers may do so at once.

        Raises:
            RedisError: some may have been moved; do it again.
        """
        for partition in self._retired:
            lists = (keys.queue(partition), keys.claimed(partition), keys.aside(partition))
            jobs = _stragglers(self._redis, lists, (_MOST, 2 * MAX_COMMAND_BYTES, keys.RQ_JOB_PREFIX))
            if jobs:
                reach(CrashPoint.BEFORE_MOVE)
            for job_id, data in zip(jobs[::2], jobs[1::2], strict=True):
                self._move(partition, job_id, self._place(data))
                reach(CrashPoint.AFTER_MOVE)
            if jobs:
                logger.info("moved to the current generation partition=%s jobs=%d", partition, len(jobs) // 2)

    def _place(self, data: bytes | None) -> PartitionId:
        """Where its Session is served; what is no command goes anywhere, to fail visibly there."""
        try:
            return self._topology.partition_of(wire.decode_job(data or b"").session_id)
        except InvalidRequest:
            return PartitionId(self._topology.generation, 0)

    def _move(self, partition: PartitionId, job_id: bytes, place: PartitionId) -> None:
        names: tuple[str | bytes, ...] = (
            keys.queue(partition),
            keys.queue(place),
            keys.RQ_JOB_PREFIX.encode() + job_id,
            keys.RQ_QUEUES,
            keys.owners(place.generation),
        )
        args = (job_id, keys.queue_name(place), place.number, keys.WAKE_PREFIX, keys.WAKE_TTL_S)
        _move(self._redis, names, args)
