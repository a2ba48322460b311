"""Who should own which partition: fair shares, decided by each worker for itself (pure).

A worker acquires what nobody alive holds until it has its share, and releases what it holds past it.
Two workers that want the same partition are told apart by the compare-and-set in Redis.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

SINGLE_PREFIX = "rq-job-"
"""Begins the id of what takes one partition for a single command (`worker.single`): no share is due to it."""


class Rebalance(Struct, frozen=True):
    """Partition numbers to give back, and to claim with the owner that was seen there (None: nobody)."""

    release: tuple[int, ...] = ()
    acquire: tuple[tuple[int, str | None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.release or self.acquire)


def rebalance(me: str, alive: Collection[str], owners: Mapping[int, str], partitions: int) -> Rebalance:
    """What `me` should do; `alive` are the workers whose heartbeat was seen lately, with or without `me`."""
    present = {*alive, me}
    workers = sorted(worker for worker in present if not worker.startswith(SINGLE_PREFIX))
    share = -(-partitions // len(workers))
    mine = sorted(number for number, owner in owners.items() if owner == me and number < partitions)
    if len(mine) > share:
        return Rebalance(release=tuple(mine[share:]))
    free = [
        (number, owner) for number in range(partitions) if (owner := owners.get(number)) is None or owner not in present
    ]
    # Start at one's own place, so that workers that join together seldom want the same partition.
    start = workers.index(me) * len(free) // len(workers) if free else 0
    wanted = (free[start:] + free[:start])[: share - len(mine)]
    return Rebalance(acquire=tuple(wanted))


class Liveness:
    """Which workers are alive, judged on this process's own monotonic clock.

    A worker's session key expires by the server's clock, which may jump. So a key that is there counts only
    while its beat goes on changing.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, beats: Mapping[str, int], now_s: float) -> frozenset[str]:
        """Take in the beats that stand in Redis at `now_s` (monotonic seconds); who is alive."""
        seen = {}
        for worker, beat in beats.items():
            known = self._seen.get(worker)
            seen[worker] = known if known is not None and known[0] == beat else (beat, now_s)
        self._seen = seen
        return frozenset(worker for worker, (_, since) in seen.items() if now_s - since < self._ttl_s)
