"""The worker's loop: wake, claim, process, acknowledge; and hold the partitions that are its share."""

import logging
import random
import threading
import time
from collections.abc import Sequence

from redis.exceptions import RedisError

from barrier.flush import FlushDesk, new_request_id, read_reply
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
from worker.acknowledge import acknowledge
from worker.assignment import Assignment, names_of
from worker.claims import Claim, Claimed, ClaimQueue, Ending
from worker.core import retry
from worker.intake import Intake, Round
from worker.keeper import LeaseKeeper
from worker.leases import LeaseTable
from worker.runtime import Runtime
from worker.stragglers import Stragglers

logger = logging.getLogger(__name__)

_HINTS = 512
_LONGEST_NUMBER = 6
_PRUNE_EVERY_S = 60.0
_PRUNE_LIMIT = 1000


class PartitionLoop:
    """Serves a fair share of the partitions until it is told to stop.

    What it holds in memory it can lose at any moment: claimed commands lie on a list in Redis, outcomes in
    the store. So trouble of any kind is met by dropping everything and claiming it anew under a new epoch.
    """

    def __init__(self, runtime: Runtime, worker_id: str) -> None:
        settings, standing = runtime.settings, runtime.standing
        self._redis = runtime.redis
        self._store = runtime.store
        self._engine = runtime.engine
        self._topology = standing.served
        self._settings = settings
        self._clock_ms = runtime.clock_ms
        self._worker_id = worker_id
        self._table = LeaseTable(runtime.redis, worker_id, self._topology, settings.lease_ttl)
        self._queue = ClaimQueue(runtime.redis, worker_id, settings)
        self._assignment = Assignment(runtime, self._table, self._queue)
        self._intake = Intake(self._assignment, self._queue, settings.batch_size)
        self._desk = FlushDesk(runtime.redis, worker_id, settings.flush_timeout)
        self._report = TroubleReport(runtime.redis, f"worker {worker_id}")
        retired = () if standing.former else topologies.former_partitions(standing.stored)
        self._stragglers = Stragglers(runtime.redis, retired, self._topology)
        self._keeper = LeaseKeeper(
            self._table, standing, settings.lease_ttl, self.partitions, retired, report=self._report
        )
        self._troubles = 0
        self._prune_at = time.monotonic() + _PRUNE_EVERY_S

    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions owned right now. May be asked from any thread."""
        return self._assignment.partitions()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set or the generation is over, then finish the batch, put the rest back, release all.

        A generation is over when another one takes its place, or, of a former one, when it is worked off.
        """
        self._keeper.start()
        in_order = False
        try:
            while not (stop.is_set() or self._assignment.over):
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
            logger.warning("fenced off partitions=%s", names_of(fenced.partitions))
            self._assignment.drop(fenced.partitions)
        except (RedisError, StoreUnavailable, StoreForeign) as error:
            # Whatever it is (a failover, a full disk, a rule changed by mistake): an operator can end it, we wait.
            self._troubles += 1
            self._report.meet(error)
            self._assignment.drop(self.partitions())
            self._keeper.nudge()
            pause = retry.delay(self._troubles, random.random(), cap_s=2.0)  # noqa: S311 - jitter, not a secret
            logger.warning("out of service for %.2f s: %s", pause, error)
            stop.wait(pause)

    def _report_waiting(self) -> None:
        """No trouble but that of the Sessions that wait for another try."""
        failures = [error for owned in self._assignment.owned.values() for error in owned.lot.failures()]
        if failures:
            self._report.meet(failures[0], f"Sessions that wait: {len(failures)}; {failures[0]}")
        else:
            self._report.end()

    def _turn(self) -> None:
        """One round: leases, then either a batch or a wait for work."""
        if self._keeper.failure is not None:
            raise self._keeper.failure
        self._assignment.look_after(self._keeper)
        self._prune()
        if not self._keeper.trusted():
            # The lease may have run out; a commit would be fenced off. The keeper goes on trying.
            time.sleep(self._settings.lease_ttl / 50)
            return
        self._intake.claim()
        work = self._intake.next_round()
        if work.claims:
            reach(CrashPoint.AFTER_CLAIM)
            self._process(work)
            self._intake.end_trials(work.claims)
        elif not self._assignment.ready:
            self._await_work()

    def _process(self, work: Round) -> None:
        ownerships = {partition: owned.ownership for partition, owned in self._assignment.owned.items()}
        processed = self._engine.process(work.claims, ownerships, self._live(work.claims), work.flushes)
        endings = [*processed.ended, *self._settle(work.claims, processed.deferred)]
        acknowledge(self._queue, self._store, endings)
        self._intake.tried(work.claims)
        self._ask_for_flushes()

    def _live(self, batch: Sequence[Claimed]) -> dict[str, LiveOwner]:
        """The live owners of a batch's Sessions: as the claims say, or asked for where that is unknown or old."""
        known: dict[str, LiveOwner] = {}
        unknown: set[str] = set()
        for claim in batch:
            if not isinstance(claim, Claim):
                continue
            session_id = claim.command.session_id
            if not claim.owner_known or self._assignment.owned[claim.partition].lot.holds(session_id):
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
            owned = self._assignment.owned[partition]
            if not (waiting.get(partition) or owned.lot):
                continue
            self._intake.look_again(partition)
            given_up += owned.lot.settle(claims, waiting.get(partition, ()), now)
        if deferred:
            reach(CrashPoint.AFTER_PARKING)
        return given_up

    def _ask_for_flushes(self) -> None:
        """Sessions that wait for a flush by their owner are parked until it answers."""
        asked = [
            (owned.lot, new_request_id(), owner)
            for owned in self._assignment.owned.values()
            for owner in owned.lot.flushes_needed()
        ]
        if asked:
            until = self._desk.request({request_id: owner for _, request_id, owner in asked})
            for lot, request_id, owner in asked:
                lot.flush_requested(owner.session_id, request_id, until)
            reach(CrashPoint.AFTER_FLUSH_REQUEST)

    def _await_work(self) -> None:
        """Block until something is rung in, or a parked Session's time has come."""
        due = [at for owned in self._assignment.owned.values() if (at := owned.lot.next_due()) is not None]
        timeout = min([BLOCK_S, *(max(0.001, at - time.monotonic()) for at in due)])
        wake = keys.wake(self._worker_id)
        rung = self._redis.execute_command("BLMPOP", f"{timeout:.3f}", 1, wake, "LEFT", "COUNT", _HINTS)
        for hint in set(rung[1]) if rung else ():
            if hint.isdigit() and len(hint) < _LONGEST_NUMBER:
                self._assignment.ready.add(PartitionId(self._topology.generation, int(hint)))
            elif hint == b"lease":
                self._keeper.nudge()
            elif (reply := read_reply(hint)) is not None:
                for owned in self._assignment.owned.values():
                    owned.lot.flush_answered(reply, time.monotonic())
            else:
                self._assignment.ready.update(self._assignment.owned)
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

    def _drain(self, *, put_back: bool) -> None:
        try:
            if put_back:
                self._assignment.release(self.partitions())
            reach(CrashPoint.BEFORE_LEAVING)
            self._report.withdraw()
            self._table.leave()
        except RedisError as error:
            logger.warning("left without releasing; the leases run out by themselves: %s", error)
