"""The worker's loop: wake, claim, process, acknowledge; and hold the partitions that are its share."""

import logging
import random
import threading
import time
from collections.abc import Sequence

from redis.exceptions import RedisError

from barrier.flush import FlushDesk, new_request_id, read_reply
from feedback.agent_desk import AgentDesk
from feedback.connection import BLOCK_S
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import FeedbackError, StoreForeign, StoreUnavailable
from feedback.evidence import REPLY_MARK, LogQuestion
from feedback.flushing import LiveOwner
from feedback.live_owners import live_owners
from feedback.partitions import PartitionId
from feedback.troubles import TroubleReport
from persistence.sidecar.store import PartitionsFenced
from worker import topology as topologies
from worker.assignment import Assignment, names_of
from worker.claims import Claim, Claimed, Ending
from worker.core import retry
from worker.exchange import Exchange
from worker.intake import Intake, Round
from worker.keeper import LeaseKeeper
from worker.leases import LeaseTable
from worker.parked import ParkedNote
from worker.queue import ClaimQueue
from worker.runtime import Runtime
from worker.stragglers import Stragglers

logger = logging.getLogger(__name__)

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
        self._intake = Intake(self._assignment, self._queue, self._topology.generation, settings.batch_size)
        self._exchange = Exchange(
            runtime.redis, self._queue, runtime.store, worker_id, self._topology.generation, meter=runtime.meter
        )
        self._desk = FlushDesk(runtime.redis, worker_id, settings.flush_timeout)
        self._agents = AgentDesk(runtime.redis, worker_id, settings.agent_timeout)
        self._report = TroubleReport(runtime.redis, f"worker {worker_id}")
        self._meter = runtime.meter
        self._meter.serves(self._assignment)
        retired = () if standing.former else topologies.former_partitions(standing.stored)
        self._stragglers = Stragglers(runtime.redis, retired, self._topology)
        parked = ParkedNote(runtime.redis, worker_id, lambda: self._assignment.parking)
        self._keeper = LeaseKeeper(
            self._table, standing, settings.lease_ttl, self.partitions, retired, report=self._report, parked=parked
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
            self._exchange.close()

    def _turn_or_recover(self, stop: threading.Event) -> None:
        self._meter.turn()
        try:
            self._turn()
            if self._report.is_open or self._assignment.parking:
                self._report_waiting()
        except PartitionsFenced as fenced:
            logger.warning("fenced off partitions=%s", names_of(fenced.partitions))
            self._meter.fenced()
            self._assignment.drop(fenced.partitions)
        except (RedisError, StoreUnavailable, StoreForeign) as error:
            # Whatever it is (a failover, a full disk, a rule changed by mistake): an operator can end it, we wait.
            self._troubles += 1
            self._report.meet(error)
            self._meter.interrupted(error)
            self._exchange.abandon()
            self._assignment.drop(self.partitions())
            self._keeper.nudge()
            pause = retry.delay(self._troubles, random.random(), cap_s=2.0)  # noqa: S311 - jitter, not a secret
            logger.warning("out of service for %.2f s: %s", pause, error)
            stop.wait(pause)

    def _report_waiting(self) -> None:
        """No trouble but that of the Sessions that wait for another try."""
        if not self._keeper.holds_its_share():
            return
        # Taking partitions over writes to the store: it can be written.
        self._troubles = 0
        failures = [error for lot in self._assignment.parking.values() for error in lot.failures()]
        if failures:
            self._report.meet(failures[0], f"Sessions that wait: {len(failures)}; {failures[0]}")
        else:
            self._report.end()

    def _turn(self) -> None:
        """Leases, then one round of work, or a look for some."""
        if self._keeper.failure is not None:
            raise self._keeper.failure
        if self._assignment.is_outdated(self._keeper):
            self._take_in()  # while partitions change hands, nothing may be under way
            self._assignment.look_after(self._keeper)
            self._meter.looked_after()
        self._prune()
        if not self._keeper.trusted():
            # The lease may have run out; a commit would be fenced off. The keeper goes on trying.
            time.sleep(self._settings.lease_ttl / 50)
            return
        if self._intake.suspected() is not None or self._intake.is_exhausted():
            self._take_in()
            self._intake.claim_suspect()
            self._intake.resume()
        work = self._intake.next_round()
        if work.is_trial:
            self._try_alone(work)
        elif work.claims:
            self._work_on(work)
        else:
            if not self._exchange.is_under_way:
                self._exchange.claim(self._intake.next_claim(), wait_s=self._patience_s())
            self._take_in()

    def _work_on(self, work: Round) -> None:
        """One round: the server acknowledges the last one meanwhile, and claims the next."""
        if self._assignment.ready and not self._exchange.is_under_way:
            self._exchange.claim(self._intake.next_claim())
        reach(CrashPoint.AFTER_CLAIM)
        endings = self._process(work)
        is_under_way = self._exchange.is_under_way
        self._exchange.acknowledge(endings)
        if is_under_way:
            self._take_in()
        if self._assignment.ready:
            self._exchange.claim(self._intake.next_claim())
        elif not (self._intake.has_claims() or self._assignment.parking):
            self._exchange.claim(self._intake.next_claim(), wait_s=BLOCK_S)
        self._ask_around()

    def _try_alone(self, work: Round) -> None:
        """A round of one suspect: nothing else is under way, so that only this one can be why this worker ends."""
        self._take_in()
        self._intake.begin_trial(work)
        reach(CrashPoint.AFTER_CLAIM)
        self._exchange.acknowledge(self._process(work))
        self._take_in()
        self._ask_around()
        self._intake.end_trial(work)

    def _take_in(self) -> None:
        """The end of what is under way: what was tried is acknowledged, and what was claimed is in hand."""
        if not self._exchange.is_under_way:
            return
        received = self._exchange.receive()
        self._intake.acknowledged(received.acknowledged)
        self._intake.take(received.taken)
        for ring in dict.fromkeys(received.taken.rings):  # in order: of two answers the first counts
            self._heed(ring)

    def _heed(self, ring: bytes) -> None:
        """What somebody pushed on the wake list. Where a number was rung, the claim has looked already."""
        if ring.isdigit() and len(ring) < _LONGEST_NUMBER:
            self._intake.rung(PartitionId(self._topology.generation, int(ring)))
        elif ring == b"lease":
            self._keeper.nudge()
        elif (reply := read_reply(ring)) is not None:
            for lot in self._assignment.parking.values():
                lot.flush_answered(reply, time.monotonic())
        elif ring.startswith(REPLY_MARK):
            for told in self._agents.told(ring):
                lot_of = self._assignment.parking.get(self._topology.partition_of(told.session_id))
                if lot_of is not None:
                    lot_of.evidence_answered(told, time.monotonic())
        else:
            self._assignment.ready.update(self._assignment.owned)
            self._stragglers.move()

    def _patience_s(self) -> float:
        """How long to wait for a ring: 0 when something may be claimed, else until a parked Session's time has come."""
        if self._assignment.ready:
            return 0.0
        due = [at for lot in self._assignment.parking.values() if (at := lot.next_due()) is not None]
        return min([BLOCK_S, *(max(0.001, at - time.monotonic()) for at in due)])

    def _process(self, work: Round) -> list[tuple[Claimed, Ending]]:
        """Commit a round, and park what has to wait; the others, with their ends."""
        owned = self._assignment.owned
        ownerships = {partition: owned[partition].ownership for partition in {claim.partition for claim in work.claims}}
        processed = self._engine.process(work.claims, ownerships, self._live(work.claims), work.answers)
        endings = [*processed.ended, *self._settle(work.claims, processed.deferred)]
        self._meter.processed(endings, processed.deferred)
        self._intake.tried(work.claims)
        return endings

    def _live(self, batch: Sequence[Claimed]) -> dict[str, LiveOwner]:
        """The live owners of a batch's Sessions: as the claims say, or asked for where that is unknown or old."""
        known: dict[str, LiveOwner] = {}
        unknown: set[str] = set()
        for claim in batch:
            if not isinstance(claim, Claim):
                continue
            session_id = claim.command.session_id
            lot = self._assignment.parking.get(claim.partition)
            if not claim.owner_known or (lot is not None and lot.holds(session_id)):
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
            if waiting.get(partition) or partition in self._assignment.parking:
                self._intake.look_again(partition)
                given_up += self._assignment.owned[partition].lot.settle(claims, waiting.get(partition, ()), now)
                self._assignment.note_parking(partition)
        if deferred:
            reach(CrashPoint.AFTER_PARKING)
        return given_up

    def _ask_around(self) -> None:
        """Sessions that wait for somebody's answer are parked until it comes, or is overdue."""
        if self._assignment.parking:
            self._ask_for_flushes()
            self._ask_agents()

    def _ask_for_flushes(self) -> None:
        """Sessions that wait for a flush by their owner are parked until it answers."""
        asked = [
            (lot, new_request_id(), owner)
            for lot in self._assignment.parking.values()
            for owner in lot.flushes_needed()
        ]
        if asked:
            until = self._desk.request({request_id: owner for _, request_id, owner in asked})
            for lot, request_id, owner in asked:
                lot.flush_requested(owner.session_id, request_id, until)
            reach(CrashPoint.AFTER_FLUSH_REQUEST)

    def _ask_agents(self) -> None:
        """Sessions whose logs are elsewhere are parked until the agents of their hosts answer."""
        questions: dict[str, list[LogQuestion]] = {}
        for lot in self._assignment.parking.values():
            for host, question in lot.evidence_needed():
                questions.setdefault(host, []).append(question)
        if not questions:
            return
        now = time.monotonic()
        for asked in self._agents.request(questions):
            for session_id in asked.session_ids:
                lot = self._assignment.parking[self._topology.partition_of(session_id)]
                lot.evidence_requested(session_id, asked, now)
        reach(CrashPoint.AFTER_ASKING)

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
                if self._exchange.is_under_way:
                    self._table.ring()  # it may be waiting for that
                self._take_in()
                self._assignment.release(self.partitions())
            reach(CrashPoint.BEFORE_LEAVING)
            self._report.withdraw()
            self._table.leave()
        except (RedisError, StoreUnavailable, StoreForeign) as error:
            logger.warning("left without releasing; the leases run out by themselves: %s", error)
