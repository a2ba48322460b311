"""The background thread that keeps a worker's leases alive while its loop is busy."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from redis.exceptions import RedisError

from feedback.partitions import PartitionId
from feedback.troubles import TroubleReport
from worker.core.shares import Liveness, Rebalance, rebalance
from worker.leases import LeaseTable, View
from worker.parked import ParkedNote
from worker.topology import Standing

logger = logging.getLogger(__name__)

_BEATS_PER_TTL = 5
# A lease counts as held for this part of its TTL only, on the monotonic clock from before the renewal was sent.
_TRUSTED_PART = 0.8


class Sighting(Struct, frozen=True):
    """What a heartbeat saw, and when it was sent (monotonic seconds)."""

    view: View
    at_s: float


class LeaseKeeper:
    """Sends heartbeats, judges who is alive, and says what should change. The loop makes the changes."""

    def __init__(
        self,
        table: LeaseTable,
        topologies: Standing,
        ttl_s: float,
        owned: Callable[[], Collection[PartitionId]],
        also_watched: Sequence[PartitionId],
        *,
        report: TroubleReport,
        parked: ParkedNote,
    ) -> None:
        self._table = table
        self._report = report
        self._parked = parked
        self._partitions = topologies.served.partitions
        self._generation = topologies.current.generation
        # The loop looks whether a former generation is worked off: commands of the current one wait for that.
        self._works_off = topologies.former is not None
        self._ttl_s = ttl_s
        self._owned = owned
        self._also_watched = also_watched
        self._liveness = Liveness(ttl_s)
        self._stopping = False
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._trusted_until = 0.0
        self._alive: frozenset[str] = frozenset()
        self.sighting: Sighting | None = None
        self.outages = 0
        """How often the server was out of reach: it may be another one, or have forgotten, since."""
        self.failure: Exception | None = None
        """Why this thread ended, if it did on its own."""

    def start(self) -> None:
        """Send a first heartbeat at once, in the caller's thread, then go on alone."""
        self._try_beat()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; the session stays until it is left or expires."""
        self._stopping = True
        self._nudged.set()
        if self._thread.is_alive():
            self._thread.join()

    def nudge(self) -> None:
        """Look around now: something changed among the workers."""
        self._nudged.set()

    def trusted(self) -> bool:
        """Whether this worker's leases cannot have run out yet."""
        return time.monotonic() < self._trusted_until

    def plan(self) -> Rebalance:
        """What to release and acquire, from the last look around."""
        if self.sighting is None:
            return Rebalance()
        return rebalance(self._table.worker_id, self._alive, self.sighting.view.owners, self._partitions)

    def holds_its_share(self) -> bool:
        """Whether what was seen to be this worker's is what the loop owns: it could take over all of it."""
        return self.sighting is not None and not self._holds_other_than_it_owns(self.sighting.view)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._nudged.wait(self._ttl_s / _BEATS_PER_TTL)
                self._nudged.clear()
                if not self._stopping:
                    self._try_beat()
        except Exception as error:  # noqa: BLE001 - handed to the loop, which ends the process with it
            self.failure = error

    def _try_beat(self) -> None:
        try:
            view = self._beat()
            if (
                self._works_off
                or self.plan()
                or view.generation != self._generation
                or self._holds_other_than_it_owns(view)
            ):
                self._table.ring()
            self._report.publish()
            self._parked.publish()
        except RedisError as error:
            self.outages += 1
            logger.warning("heartbeat failed: %s", error)

    def _holds_other_than_it_owns(self, view: View) -> bool:
        """Whether the loop dropped what is still this worker's (a lost reply), or lost what it still holds."""
        mine = {number for number, owner in view.owners.items() if owner == self._table.worker_id}
        return mine != {partition.number for partition in self._owned()}

    def _beat(self) -> View:
        sent = time.monotonic()
        view = self._table.heartbeat(time.monotonic_ns(), (*self._owned(), *self._also_watched))
        now = time.monotonic()
        self._alive = self._liveness.observe(view.beats, now)
        self.sighting = Sighting(view, sent)
        self._trusted_until = sent + self._ttl_s * _TRUSTED_PART
        return view
