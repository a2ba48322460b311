"""How many Sessions wait in which partitions, put where `feedback status` finds it: only their owner knows."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.partitions import PartitionId
from worker.parking import ParkingLot


class ParkedNote:
    """One worker's hash, partition -> Sessions. Made anew with each heartbeat as long as any waits; for one thread.

    A courtesy, as `feedback.troubles` is: no failure of it may disturb the work.
    """

    def __init__(self, redis: Redis, worker_id: str, parking: Callable[[], Mapping[PartitionId, ParkingLot]]) -> None:
        self._redis = redis
        self._key = keys.parked(worker_id)
        self._parking = parking
        self._is_there = False

    def publish(self) -> None:
        """Say what is so now; no round trip while nothing waits."""
        parked = {str(partition): lot.sessions for partition, lot in tuple(self._parking().items())}
        if not (parked or self._is_there):
            return
        with suppress(RedisError), self._redis.pipeline() as pipeline:
            pipeline.delete(self._key)
            if parked:
                pipeline.hset(self._key, items=[part for note in parked.items() for part in note])
                pipeline.expire(self._key, keys.PARKED_TTL_S)
            pipeline.execute()
            self._is_there = bool(parked)
