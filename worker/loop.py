"""The worker's loop: wake, claim, process, acknowledge; and hold the partitions that are its share."""

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set

from redis.exceptions import RedisError

from feedback import keys
from feedback.connection import BLOCK_S
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import FeedbackError, StoreForeign, StoreUnavailable
from feedback.flushing import LiveOwner
from feedback.live_owners import live_owners
from feedback.partitions import PartitionId
from feedback.troubles import TroubleReport
from persistence.sidecar.store import PartitionsFenced
from worker import topology as topologies
from worker.acknowledge import acknowledge, publish_missing
from worker.claims import Claim, Claimed, ClaimQueue, Ending, Recovered
from worker.core import retry
from worker.core.live import FlushOutcome
from worker.engine import Ownership
from worker.flush import FlushDesk, new_request_id, read_reply
from worker.keeper import LeaseKeeper
from worker.leases import LeaseTable, View
from worker.parking import ParkingLot
from worker.runtime import Runtime
from worker.stragglers import Stragglers

logger = logging.getLogger(__name__)

_HINTS = 512
_LONGEST_NUMBER = 6
_PRUNE_EVERY_S = 60.0
_PRUNE_LIMIT = 1000


class _Owned:
    """A partition that this worker owns, and what it has claimed of it."""

    def __init__(self, ownership: Ownership, lot: ParkingLot, left: Recovered, *, bereft: bool) -> None:
        self.ownership = ownership
        self.lot = lot
        self.suspects = left.commands if left.again else 0
        """Commands at the head of the queue, over which two owners ended."""
        self.scarred = bereft and left.commands > 0 and not left.again
        """One owner ended over commands, which are not done yet."""
        self.since = time.monotonic()
        self.waiting: list[Claimed] = []

    def held(self) -> int:
        """Commands claimed and not finished."""
        return len(self.waiting) + len(self.lot)


class PartitionLoop:
    """Serves a fair share of the partitions until it is told to stop.

    What it holds in memory it can lose at any moment: claimed commands lie on a list in Redis, outcomes in
    the store. So trouble of any kind is met by dropping everything and claiming it anew under a new epoch.
    """

    def __init__(self, runtime: Runtime, worker_id: str) -> None:
        self._redis = runtime.redis
        self._store = runtime.store
        self._engine = runtime.engine
        self._standing = runtime.standing
        self._topology = runtime.standing.served
        self._settings = runtime.settings
        self._clock_ms = runtime.clock_ms
        self._worker_id = worker_id
        ttl_s = runtime.settings.lease_ttl
        self._table = LeaseTable(runtime.redis, worker_id, self._topology, ttl_s)
        retired = () if runtime.standing.former else topologies.former_partitions(runtime.standing.stored)
        self._stragglers = Stragglers(runtime.redis, retired, self._topology)
        self._report = TroubleReport(runtime.redis, f"worker {worker_id}")
        self._keeper = LeaseKeeper(self._table, runtime.standing, ttl_s, self.partitions, retired, report=self._report)
        self._queue = ClaimQueue(runtime.redis, worker_id, runtime.settings)
        self._desk = FlushDesk(runtime.redis, worker_id, runtime.settings.flush_timeout)
        self._owned: dict[PartitionId, _Owned] = {}
        self._ready: set[PartitionId] = set()
        self._acted_on = 0.0
        self._outages = 0
        self._over = False
        self._troubles = 0
        self._prune_at = time.monotonic() + _PRUNE_EVERY_S

    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions owned right now. May be asked from any thread."""
        return tuple(self._owned)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set or the generation is over, then finish the batch, put the rest back, release all.

        A generation is over when another one takes its place, or, of a former one, when it is worked off.
        """
        self._keeper.start()
        in_order = False
        try:
            while not (stop.is_set() or self._over):
                self._turn_or_recover(stop)
            in_order = True
        finally:
            self._keeper.stop()
            # After a defect the claims stay as they are: one of them may be why, and the next owner takes care.
            self._drain(put_back=in_order)

    def _turn_or_recover(self, stop: threading.Event) -> None:
        try:
            self._turn()
            if self._keeper.holds_its_share():
                # Taking partitions over writes to the store: it can be written.
                self._troubles = 0
                self._report_waiting()
        except PartitionsFenced as fenced:
            logger.warning("fenced off partitions=%s", _names(fenced.partitions))
            self._drop(fenced.partitions)
        except (RedisError, StoreUnavailable, StoreForeign) as error:
            # Whatever it is (a failover, a full disk, a rule changed by mistake): an operator can end it, we wait.
            self._troubles += 1
            self._report.meet(error)
            self._drop(self.partitions())
            self._keeper.nudge()
            pause = retry.delay(self._troubles, random.random(), cap_s=2.0)  # noqa: S311 - jitter, not a secret
            logger.warning("out of service for %.2f s: %s", pause, error)
            stop.wait(pause)

    def _report_waiting(self) -> None:
        """No trouble but that of the Sessions that wait for another try."""
        failures = [error for owned in self._owned.values() for error in owned.lot.failures()]
        if failures:
            self._report.meet(failures[0], f"Sessions that wait: {len(failures)}; {failures[0]}")
        else:
            self._report.end()

    def _turn(self) -> None:
        """One round: leases, then either a batch or a wait for work."""
        if self._keeper.failure is not None:
            raise self._keeper.failure
        self._look_after_leases()
        self._prune()
        if not self._keeper.trusted():
            # The lease may have run out; a commit would be fenced off. The keeper goes on trying.
            time.sleep(self._settings.lease_ttl / 50)
            return
        self._claim()
        batch, flushes = self._batch()
        if batch:
            reach(CrashPoint.AFTER_CLAIM)
            self._process(batch, flushes)
            self._end_trials(batch)
        elif not self._ready:
            self._await_work()

    def _claim(self) -> None:
        """Take what waits in the partitions that were rung for, up to one batch in all."""
        self._ready &= self._owned.keys()
        ready = list(self._ready)
        random.shuffle(ready)  # which partition comes first when there is more than one batch
        # What a failed round left undone is tried again before more is claimed.
        held = {partition: self._owned[partition].held() for partition in ready if not self._owned[partition].waiting}
        suspected = [partition for partition in held if self._owned[partition].suspects]
        most = self._settings.batch_size
        if suspected:
            held, most = {suspected[0]: held[suspected[0]]}, 1
        for partition, batch in self._queue.claim(held, most, suspect=bool(suspected)).items():
            if batch is None:
                self._drop((partition,))
                continue
            owned = self._owned[partition]
            owned.suspects = max(0, owned.suspects - len(batch.claims)) if batch.more else 0
            owned.waiting = [
                claim for claim in batch.claims if not (isinstance(claim, Claim) and owned.lot.admit(claim))
            ]
            if suspected and not owned.waiting:
                self._queue.end_trial(partition)  # it is parked behind its Session's earlier ones
            if not batch.more or self._is_crowded(owned):
                self._ready.discard(partition)

    def _batch(self) -> tuple[list[Claimed], dict[str, FlushOutcome]]:
        """What is to be tried now, and what came of the flushes that some of it waited for."""
        now = time.monotonic()
        batch: list[Claimed] = []
        flushes: dict[str, FlushOutcome] = {}
        for owned in self._owned.values():
            due = owned.lot.due(now)
            flushes |= due.flushes
            batch += due.claims
            batch += owned.waiting
        suspects = [claim for claim in batch if isinstance(claim, Claim) and claim.suspect]
        if not suspects:
            return batch, flushes
        # One that was just claimed is on trial already: no other may be tried meanwhile.
        alone = next((claim for claim in suspects if claim in self._owned[claim.partition].waiting), suspects[0])
        self._queue.begin_trial(alone)
        return [alone], flushes

    def _end_trials(self, batch: Sequence[Claimed]) -> None:
        """This worker outlived the batch: it was nothing in there that ended the others."""
        if isinstance(batch[0], Claim) and batch[0].suspect:
            self._queue.end_trial(batch[0].partition)
        for partition, owned in self._owned.items():
            if owned.scarred and owned.held() == 0:
                self._queue.end_trial(partition)
                owned.scarred = False

    def _process(self, batch: Sequence[Claimed], flushes: Mapping[str, FlushOutcome]) -> None:
        ownerships = {partition: owned.ownership for partition, owned in self._owned.items()}
        processed = self._engine.process(batch, ownerships, self._live(batch), flushes)
        endings = [*processed.ended, *self._settle(batch, processed.deferred)]
        acknowledge(self._queue, self._store, endings)
        done = set(map(id, batch))
        for owned in self._owned.values():
            owned.waiting = [claim for claim in owned.waiting if id(claim) not in done]
        self._ask_for_flushes()

    def _live(self, batch: Sequence[Claimed]) -> dict[str, LiveOwner]:
        """The live owners of a batch's Sessions: as the claims say, or asked for where that is unknown or old."""
        known: dict[str, LiveOwner] = {}
        unknown: set[str] = set()
        for claim in batch:
            if not isinstance(claim, Claim):
                continue
            session_id = claim.command.session_id
            if not claim.owner_known or self._owned[claim.partition].lot.holds(session_id):
                unknown.add(session_id)
            elif claim.owner is not None:
                known[session_id] = claim.owner
        return known | live_owners(self._redis, unknown)

    def _settle(
        self, batch: Sequence[Claimed], deferred: Sequence[tuple[Claim, FeedbackError]]
    ) -> list[tuple[Claim, Ending]]:
        """Park what has to wait, let go of what was parked and ended; what was tried too often, with its end."""
        tried: dict[PartitionId, list[Claim]] = {}
        for claim in batch:
            if isinstance(claim, Claim):
                tried.setdefault(claim.partition, []).append(claim)
        waiting: dict[PartitionId, list[tuple[Claim, FeedbackError]]] = {}
        for claim, error in deferred:
            waiting.setdefault(claim.partition, []).append((claim, error))
        given_up: list[tuple[Claim, Ending]] = []
        now = time.monotonic()
        for partition, claims in tried.items():
            owned = self._owned[partition]
            if not (waiting.get(partition) or owned.lot):
                continue
            if self._is_crowded(owned):
                self._ready.add(partition)  # there may be room again for what was left on its queue
            given_up += owned.lot.settle(claims, waiting.get(partition, ()), now)
        if deferred:
            reach(CrashPoint.AFTER_PARKING)
        return given_up

    def _ask_for_flushes(self) -> None:
        """Sessions that wait for a flush by their owner are parked until it answers."""
        asked = [
            (owned.lot, new_request_id(), owner)
            for owned in self._owned.values()
            for owner in owned.lot.flushes_needed()
        ]
        if asked:
            until = self._desk.request({request_id: owner for _, request_id, owner in asked})
            for lot, request_id, owner in asked:
                lot.flush_requested(owner.session_id, request_id, until)
            reach(CrashPoint.AFTER_FLUSH_REQUEST)

    def _is_crowded(self, owned: _Owned) -> bool:
        return self._queue.is_crowded(owned.held(), owned.lot.size())

    def _await_work(self) -> None:
        """Block until something is rung in, or a parked Session's time has come."""
        due = [at for owned in self._owned.values() if (at := owned.lot.next_due()) is not None]
        timeout = min([BLOCK_S, *(max(0.001, at - time.monotonic()) for at in due)])
        wake = keys.wake(self._worker_id)
        rung = self._redis.execute_command("BLMPOP", f"{timeout:.3f}", 1, wake, "LEFT", "COUNT", _HINTS)
        for hint in set(rung[1]) if rung else ():
            if hint.isdigit() and len(hint) < _LONGEST_NUMBER:
                self._ready.add(PartitionId(self._topology.generation, int(hint)))
            elif hint == b"lease":
                self._keeper.nudge()
            elif (reply := read_reply(hint)) is not None:
                for owned in self._owned.values():
                    owned.lot.flush_answered(reply, time.monotonic())
            else:
                self._ready.update(self._owned)
                self._stragglers.move()

    def _prune(self) -> None:
        """Forget records that no duplicate can meet any more, a few at a time."""
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE_EVERY_S
            # A clock that is far ahead would forget commands that can still be delivered: the earlier of two counts.
            seconds, _ = self._redis.execute_command("TIME")
            expired_before = min(self._clock_ms(), 1000 * seconds) - 1000 * self._settings.command_retention
            if self._store.prune(expired_before=expired_before, limit=_PRUNE_LIMIT) == _PRUNE_LIMIT:
                self._prune_at = now + 1

    def _look_after_leases(self) -> None:
        """Do what the keeper's last look around calls for."""
        sighting = self._keeper.sighting
        if sighting is None or sighting.at_s <= self._acted_on:
            return
        view, seen_at = sighting.view, sighting.at_s
        self._acted_on = time.monotonic()
        if view.generation is None or self._keeper.outages != self._outages:
            # Another server, or one that forgot: claim everything anew, and publish what it lost.
            self._outages = self._keeper.outages
            self._drop(self.partitions())
        self._look_after_generations(view)
        if self._over:
            return
        mine = {number for number, owner in view.owners.items() if owner == self._worker_id}
        self._drop([p for p, owned in self._owned.items() if owned.since < seen_at and p.number not in mine])
        plan = self._keeper.plan()
        self._release([PartitionId(self._topology.generation, number) for number in plan.release])
        granted = self._table.acquire(plan, view.beats) if plan.acquire else frozenset()
        self._adopt(mine - set(plan.release), granted)

    def _look_after_generations(self, view: View) -> None:
        """See whether this generation is over; the store says so, Redis only that it is worth a look."""
        if view.generation != self._standing.current.generation:
            self._over = self._store.topology() != self._standing.stored
            if not self._over:
                topologies.publish(self._redis, self._standing.current, self._standing.stored.deployment)
        if self._standing.former is not None and not self._over:
            # First the topology, then the look: whatever is enqueued after it goes to the current generation.
            topologies.publish(self._redis, self._standing.current, self._standing.stored.deployment)
            self._over = topologies.is_drained(self._redis, self._topology) or (
                self._store.topology() != self._standing.stored
            )

    def _adopt(self, mine: Set[int], granted: Set[int]) -> None:
        """Take over what is not held yet: a new epoch, unfinished commands back in order, lost events published.

        Of what was granted now, the last owner ended, or is out of reach; what is mine this worker itself let go.
        """
        partitions = [PartitionId(self._topology.generation, number) for number in sorted(mine | granted)]
        new = [partition for partition in partitions if partition not in self._owned]
        if not new:
            return
        reach(CrashPoint.AFTER_LEASE)
        for partition, fence in self._store.acquire_fences(new, self._worker_id).items():
            reach(CrashPoint.AFTER_FENCE)
            bereft = partition.number in granted
            left = self._queue.recover(partition, bereft=bereft)
            if left is None:
                continue
            reach(CrashPoint.AFTER_RECOVERY)
            if left.published < fence.sequence:
                publish_missing(self._queue, self._store, partition, left.published, fence.sequence)
            lot = ParkingLot(self._settings.max_attempts, random.random)
            self._owned[partition] = _Owned(Ownership(fence.epoch, fence.sequence), lot, left, bereft=bereft)
            self._ready.add(partition)
        logger.info("acquired partitions=%s", _names(new))

    def _release(self, partitions: Iterable[PartitionId]) -> None:
        """Give partitions back, with what was claimed of them at the head of the queue."""
        given = tuple(partitions)
        if not given:
            return
        # Also what is this worker's in Redis alone: after an outage it holds nothing, and nobody else may take it.
        for partition in given:
            self._queue.recover(partition)
        reach(CrashPoint.BEFORE_RELEASE)
        self._table.release([partition.number for partition in given])
        self._drop(given)
        logger.info("released partitions=%s", _names(given))

    def _drop(self, partitions: Iterable[PartitionId]) -> None:
        """Forget what is held of these partitions. Nothing is lost: see the class."""
        for partition in partitions:
            self._owned.pop(partition, None)
            self._ready.discard(partition)

    def _drain(self, *, put_back: bool) -> None:
        try:
            if put_back:
                self._release(self.partitions())
            reach(CrashPoint.BEFORE_LEAVING)
            self._report.withdraw()
            self._table.leave()
        except RedisError as error:
            logger.warning("left without releasing; the leases run out by themselves: %s", error)


def _names(partitions: Iterable[PartitionId]) -> str:
    return ",".join(map(str, partitions))
