"""What a worker takes on next: claims, retries that are due, and suspects, which are tried alone."""

import random
import time
from collections.abc import Sequence

from msgspec import Struct

from barrier.rules import FlushOutcome
from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from worker.assignment import Assignment
from worker.claims import Claim, Claimed, ClaimQueue
from worker.owned import Owned


class Round(Struct, frozen=True):
    """Commands that are to be tried now, and what came of the flushes that some of them waited for."""

    claims: Sequence[Claimed]
    flushes: dict[str, FlushOutcome]


class Intake:
    """Claims from the partitions that are ready, and puts batches together."""

    def __init__(self, assignment: Assignment, queue: ClaimQueue, batch_size: int) -> None:
        self._assignment = assignment
        self._queue = queue
        self._batch_size = batch_size

    def claim(self) -> None:
        """Take what waits in the partitions that were rung for, up to one batch in all."""
        owned, ready = self._assignment.owned, self._assignment.ready
        ready.intersection_update(owned)
        partitions = list(ready)
        random.shuffle(partitions)  # which partition comes first when there is more than one batch
        # What a failed round left undone is tried again before more is claimed.
        held = {partition: owned[partition].held() for partition in partitions if not owned[partition].waiting}
        suspected = [partition for partition in held if owned[partition].suspects]
        most = self._batch_size
        if suspected:
            held, most = {suspected[0]: held[suspected[0]]}, 1
        for partition, batch in self._queue.claim(held, most, suspect=bool(suspected)).items():
            if batch is None:
                self._assignment.drop((partition,))
                continue
            self._take(owned[partition], batch.claims, more=batch.more)
            if not self._make_room(partition):
                continue
            if suspected and not owned[partition].waiting:
                self._queue.end_trial(partition)  # it is parked behind its Session's earlier ones
            if not batch.more or self.is_crowded(owned[partition]):
                ready.discard(partition)

    def next_round(self) -> Round:
        """What is to be tried now: all that was claimed and is due, or one suspect."""
        self._resume()
        now = time.monotonic()
        claims: list[Claimed] = []
        flushes: dict[str, FlushOutcome] = {}
        for owned in self._assignment.owned.values():
            due = owned.lot.due(now)
            flushes |= due.flushes
            claims += due.claims
            claims += owned.waiting
        suspects = [claim for claim in claims if isinstance(claim, Claim) and claim.suspect]
        if not suspects:
            return Round(claims, flushes)
        # One that was just claimed is on trial already: no other may be tried meanwhile.
        just_claimed = (claim for claim in suspects if claim in self._assignment.owned[claim.partition].waiting)
        alone = next(just_claimed, suspects[0])
        self._queue.begin_trial(alone)
        return Round([alone], flushes)

    def tried(self, claims: Sequence[Claimed]) -> None:
        """These are done, or parked."""
        done = set(map(id, claims))
        for owned in self._assignment.owned.values():
            owned.waiting = [claim for claim in owned.waiting if id(claim) not in done]

    def end_trials(self, claims: Sequence[Claimed]) -> None:
        """This worker outlived the round: it was nothing in there that ended the others."""
        if isinstance(claims[0], Claim) and claims[0].suspect:
            self._queue.end_trial(claims[0].partition)
        for partition, owned in self._assignment.owned.items():
            if owned.scarred and owned.held() == 0 and not owned.lot:
                self._queue.end_trial(partition)
                owned.scarred = False

    def is_crowded(self, owned: Owned) -> bool:
        """Whether so much of one partition is claimed as a worker may hold."""
        return self._queue.is_crowded(owned.held(), owned.lot.size())

    def look_again(self, partition: PartitionId) -> None:
        """Of a crowded partition, commands are about to end: look again at what was left on its queue."""
        if self.is_crowded(self._assignment.owned[partition]):
            self._assignment.ready.add(partition)

    def _make_room(self, partition: PartitionId) -> bool:
        """Set aside what this worker cannot hold, so that it goes on claiming for all other Sessions of the partition.

        False when the partition turns out to be another worker's.
        """
        owned = self._assignment.owned[partition]
        excess = owned.lot.excess(crowded=self.is_crowded(owned))
        if excess and not self._queue.set_aside(partition, [(one.claim, one.before) for one in excess]):
            self._assignment.drop((partition,))
            return False
        if excess:
            reach(CrashPoint.AFTER_ASIDE)
        return True

    def _resume(self) -> None:
        """Claim again what was set aside, of Sessions that have nothing else left."""
        for partition, owned in tuple(self._assignment.owned.items()):
            for session_id in owned.lot.exhausted():
                most = 1 if self.is_crowded(owned) else self._batch_size
                batch = self._queue.resume(partition, session_id, most)
                if batch is None:
                    self._assignment.drop((partition,))
                    break
                claims = [claim for claim in batch.claims if isinstance(claim, Claim)]
                owned.lot.resume(session_id, claims, aside=batch.more)
                owned.waiting = [*owned.waiting, *(claim for claim in batch.claims if not isinstance(claim, Claim))]

    def _take(self, owned: Owned, claims: Sequence[Claimed], *, more: bool) -> None:
        owned.suspects = max(0, owned.suspects - len(claims)) if more else 0
        owned.waiting = [claim for claim in claims if not (isinstance(claim, Claim) and owned.lot.admit(claim))]
