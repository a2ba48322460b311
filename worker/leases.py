"""Partition leases in Redis: one session per worker, kept alive by its heartbeat; partitions point at their owner.

The lease only avoids waste: a worker that wrongly believes in its lease is stopped by the fence in the
store. So a lost answer is never a danger here, and each script may be repeated.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.partitions import PartitionId, Topology
from feedback.scripting import Script
from worker.core.shares import Rebalance

_heartbeat = Script("worker", "heartbeat")
_assign = Script("worker", "assign")
_leave = Script("worker", "leave")

_BY_FORCE = "*"
_NUMBER = re.compile(rb"[0-9]{1,20}")


class View(Struct, frozen=True):
    """What a heartbeat saw: partition owners, the beats of workers whose session stands, and the generation
    that Redis knows (None: it has forgotten everything)."""

    owners: Mapping[int, str]
    beats: Mapping[str, int]
    generation: int | None


class LeaseTable:
    """The leases of one generation, as one worker reads and writes them."""

    def __init__(self, redis: Redis, worker_id: str, topology: Topology, ttl_s: float) -> None:
        self._redis = redis
        self.worker_id = worker_id
        self._topology = topology
        self.ttl_s = ttl_s
        self._owners = keys.owners(topology.generation)

    def heartbeat(self, beat: int, watched: Iterable[PartitionId]) -> View:
        """Renew this worker's session for one lease TTL and look around, in one round trip.

        When something waits in a `watched` partition and nobody rang for it, the worker's own loop is woken.
        """
        names = (
            keys.worker_session(self.worker_id),
            keys.WORKERS,
            self._owners,
            keys.wake(self.worker_id),
            keys.TOPOLOGY,
            *map(keys.queue, watched),
        )
        args = (self.worker_id, beat, int(self.ttl_s * 1000), keys.SESSION_PREFIX, keys.WAKE_TTL_S, keys.WAKE_PREFIX)
        owners, members, beats, generation = _heartbeat(self._redis, names, args)
        return View(
            # What is no number was written by nobody of ours; an owner that is no name is one that does not live.
            owners={
                int(number): owner.decode(errors="surrogateescape")
                for number, owner in zip(owners[::2], owners[1::2], strict=True)
                if _NUMBER.fullmatch(number)
            },
            beats={
                member.decode(errors="surrogateescape"): int(value)
                for member, value in zip(members, beats, strict=True)
                if _NUMBER.fullmatch(value)
            },
            # Hosts may write the topology, too: one that is none counts as forgotten.
            generation=int(generation) if generation is not None and _NUMBER.fullmatch(generation) else None,
        )

    def acquire(self, plan: Rebalance, beats: Mapping[str, int]) -> frozenset[int]:
        """Claim the partitions of a plan by compare-and-set; those that are this worker's now."""
        return self._change(
            ("acquire", number, seen or "", str(beats.get(seen, "")) if seen else "") for number, seen in plan.acquire
        )

    def seize(self, seen: Mapping[int, str | None]) -> frozenset[int]:
        """Take partitions from the owners seen there, alive or not; those that are this one's now. The fence keeps the
        others from committing."""
        return self._change(("acquire", number, owner or "", _BY_FORCE) for number, owner in seen.items())

    def release(self, numbers: Collection[int]) -> None:
        """Give partitions back; those that are another worker's by now are left alone."""
        self._change(("release", number, "", "") for number in numbers)

    def leave(self) -> None:
        """End this worker's session: whatever it still owned is free."""
        names = (keys.worker_session(self.worker_id), keys.WORKERS, keys.wake(self.worker_id))
        _leave(self._redis, names, (self.worker_id, keys.WAKE_PREFIX, keys.WAKE_TTL_S))

    def ring(self) -> None:
        """Wake this worker's own loop."""
        wake = keys.wake(self.worker_id)
        with self._redis.pipeline() as pipeline:
            pipeline.rpush(wake, "look")
            pipeline.expire(wake, keys.WAKE_TTL_S)
            pipeline.execute()

    def _change(self, steps: Iterable[tuple[str, int, str, str]]) -> frozenset[int]:
        args: list[str | int | bytes] = [self.worker_id, keys.SESSION_PREFIX, keys.WAKE_PREFIX, keys.WAKE_TTL_S]
        for kind, number, seen, beat in steps:
            args += (kind, number, seen.encode(errors="surrogateescape"), beat)
        return frozenset(int(number) for number in _assign(self._redis, (self._owners, keys.WORKERS), args))
