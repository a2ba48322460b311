"""The partitions that are assigned to this worker: taken over, given back, lost."""

import logging
import random
import time
from collections.abc import Iterable, Set

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from worker import topology as topologies
from worker.engine import Ownership
from worker.keeper import LeaseKeeper
from worker.leases import LeaseTable, View
from worker.owned import Owned
from worker.parking import ParkingLot
from worker.queue import ClaimQueue
from worker.runtime import Runtime
from worker.takeover import take_over

logger = logging.getLogger(__name__)


class Assignment:
    """Acts on what the lease keeper sees. Used by the loop's thread, but for `partitions`."""

    def __init__(self, runtime: Runtime, table: LeaseTable, queue: ClaimQueue) -> None:
        self._redis = runtime.redis
        self._store = runtime.store
        self._standing = runtime.standing
        self._topology = runtime.standing.served
        self._settings = runtime.settings
        self._table = table
        self._queue = queue
        self._acted_on = 0.0
        self._outages = 0
        self.owned: dict[PartitionId, Owned] = {}
        self.ready: set[PartitionId] = set()
        """Those of which commands may wait to be claimed."""
        self.parking: dict[PartitionId, ParkingLot] = {}
        """The lots of those of which commands are parked: few, if any."""
        self.over = False
        """Whether another generation takes this one's place, or this one, a former one, is worked off."""

    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions owned right now. May be asked from any thread."""
        return tuple(self.owned)

    def is_outdated(self, keeper: LeaseKeeper) -> bool:
        """Whether the keeper has looked around since this was last looked after."""
        return keeper.sighting is not None and keeper.sighting.at_s > self._acted_on

    def look_after(self, keeper: LeaseKeeper) -> None:
        """Do what the keeper's last look around calls for.

        Raises:
            RedisError, StoreUnavailable: some of it may be done; look again.
        """
        sighting = keeper.sighting
        if sighting is None:
            return
        view, seen_at = sighting.view, sighting.at_s
        self._acted_on = time.monotonic()
        if view.generation is None or keeper.outages != self._outages:
            # Another server, or one that forgot: claim everything anew, and publish what it lost.
            self._outages = keeper.outages
            self.drop(self.partitions())
        self._look_after_generations(view)
        if self.over:
            return
        mine = {number for number, owner in view.owners.items() if owner == self._table.worker_id}
        self.drop([p for p, owned in self.owned.items() if owned.since < seen_at and p.number not in mine])
        plan = keeper.plan()
        self.release([PartitionId(self._topology.generation, number) for number in plan.release])
        granted = self._table.acquire(plan, view.beats) if plan.acquire else frozenset()
        self._adopt(mine - set(plan.release), granted)

    def release(self, partitions: Iterable[PartitionId]) -> None:
        """Give partitions back, with what was claimed of them at the head of the queue."""
        given = tuple(partitions)
        if not given:
            return
        # Also what is this worker's in Redis alone: after an outage it holds nothing, and nobody else may take it.
        for partition in given:
            self._queue.recover(partition)
        reach(CrashPoint.BEFORE_RELEASE)
        self._table.release([partition.number for partition in given])
        self.drop(given)
        logger.info("released partitions=%s", names_of(given))

    def drop(self, partitions: Iterable[PartitionId]) -> None:
        """Forget what is held of these partitions. Nothing is lost: it lies in Redis, and its outcomes in the store."""
        for partition in partitions:
            self.owned.pop(partition, None)
            self.ready.discard(partition)
            self.parking.pop(partition, None)

    def note_parking(self, partition: PartitionId) -> None:
        """Its lot took commands in, or let some go."""
        lot = self.owned[partition].lot
        if lot:
            self.parking[partition] = lot
        else:
            self.parking.pop(partition, None)

    def _look_after_generations(self, view: View) -> None:
        """See whether this generation is over; the store says so, Redis only that it is worth a look."""
        if view.generation != self._standing.current.generation:
            self.over = self._store.topology() != self._standing.stored
            if not self.over:
                topologies.publish(self._redis, self._standing.current, self._standing.stored.deployment)
        if self._standing.former is not None and not self.over:
            # First the topology, then the look: whatever is enqueued after it goes to the current generation.
            topologies.publish(self._redis, self._standing.current, self._standing.stored.deployment)
            self.over = topologies.is_drained(self._redis, self._topology) or (
                self._store.topology() != self._standing.stored
            )

    def _adopt(self, mine: Set[int], granted: Set[int]) -> None:
        """Take over what is not held yet: a new epoch, unfinished commands back in order, lost events published.

        Of what was granted now, the last owner ended, or is out of reach; what is mine this worker itself let go.
        """
        partitions = [PartitionId(self._topology.generation, number) for number in sorted(mine | granted)]
        new = [partition for partition in partitions if partition not in self.owned]
        if not new:
            return
        for taken in take_over(self._queue, self._store, new, self._table.worker_id, bereft=granted):
            partition, fence = taken.partition, taken.fence
            bereft = partition.number in granted
            lot = ParkingLot(self._settings.max_attempts, random.random, batch_size=self._settings.batch_size)
            self.owned[partition] = Owned(Ownership(fence.epoch, fence.sequence), lot, taken.left, bereft=bereft)
            self.ready.add(partition)
        logger.info("acquired partitions=%s", names_of(new))


def names_of(partitions: Iterable[PartitionId]) -> str:
    """Partitions as they stand in log lines."""
    return ",".join(map(str, partitions))
