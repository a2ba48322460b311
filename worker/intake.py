"""What a worker takes on next: claims, retries that are due, and suspects, which are tried alone."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec import Struct

from barrier.rules import Answer
from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from worker.assignment import Assignment
from worker.claims import Claim, Claimed, Taken
from worker.messages import Call, Wish
from worker.owned import Owned
from worker.queue import ClaimQueue

_RINGS = 512
_waiting = attrgetter("waiting")


class Round(Struct, frozen=True):
    """Commands that are to be tried now, and the answers that some of them waited for."""

    claims: Sequence[Claimed]
    answers: dict[str, Answer]
    is_trial: bool = False
    """One suspect, alone; until its trial ends, no other may begin."""


class Intake:
    """Claims from the partitions that are ready, and puts rounds together."""

    def __init__(self, assignment: Assignment, queue: ClaimQueue, generation: int, batch_size: int) -> None:
        self._assignment = assignment
        self._queue = queue
        self._generation = generation
        self._batch_size = batch_size

    def next_claim(self) -> Call:
        """The next claim: one batch at most of what waits in the partitions that are ready, or rung for by then.

        It is right for as long as what is held does not change; what was `tried` has to be acknowledged before.
        """
        owned, ready, parking = self._assignment.owned, self._assignment.ready, self._assignment.parking
        ready.intersection_update(owned)
        partitions = list(ready)
        if len(partitions) > 1:
            random.shuffle(partitions)  # which partition comes first when there is more than one batch
        asked = {partition: (owned[partition].held(), Wish.YES) for partition in partitions}
        for partition, one in owned.items():
            if one.suspects:
                asked[partition] = (one.held(), Wish.NO)
            elif partition not in asked and (one.waiting or partition in parking):
                asked[partition] = (one.held(), Wish.IF_RUNG)
        return self._queue.claim_call(self._generation, asked, self._batch_size, rings=_RINGS)

    def take(self, taken: Taken) -> None:
        """Take in what a claim brought."""
        for partition, batch in taken.batches.items():
            owned = self._assignment.owned.get(partition)
            if owned is None:
                continue  # it was let go of meanwhile; whoever takes it over puts these back
            if batch is None:
                self._assignment.drop((partition,))
                continue
            owned.suspects = max(0, owned.suspects - len(batch.claims)) if batch.more else 0
            parks = partition in self._assignment.parking
            for claim in batch.claims:
                if not (parks and isinstance(claim, Claim) and owned.lot.admit(claim)):
                    owned.waiting.append(claim)
            if parks and not self._make_room(partition):
                continue
            if batch.more and not self._is_crowded(owned):
                self._assignment.ready.add(partition)
            else:
                self._assignment.ready.discard(partition)

    def has_claims(self) -> bool:
        """Whether commands are in hand."""
        return any(map(_waiting, self._assignment.owned.values()))

    def rung(self, partition: PartitionId) -> None:
        """A ring named it. Suspects are not claimed for that, but one by one."""
        owned = self._assignment.owned.get(partition)
        if owned is not None and owned.suspects:
            self._assignment.ready.add(partition)

    def suspected(self) -> PartitionId | None:
        """A partition whose next command is suspect, if nothing of it is in hand."""
        if not self._assignment.ready:
            return None
        owned = self._assignment.owned
        return next(
            (
                partition
                for partition in self._assignment.ready
                if partition in owned and owned[partition].suspects and not owned[partition].waiting
            ),
            None,
        )

    def claim_suspect(self) -> None:
        """Claim the next suspect of one partition by itself; its trial begins. Nothing may be under way."""
        partition = self.suspected()
        if partition is None:
            return
        owned = self._assignment.owned[partition]
        self.take(Taken(self._queue.claim({partition: owned.held()}, 1, suspect=True), ()))
        if not owned.waiting and partition in self._assignment.owned:
            self._queue.end_trial(partition)  # it is parked behind its Session's earlier ones, or there was none

    def is_exhausted(self) -> bool:
        """Whether a Session that has to wait has nothing left but what was set aside."""
        return bool(self._assignment.parking) and any(lot.exhausted() for lot in self._assignment.parking.values())

    def resume(self) -> None:
        """Claim again what was set aside, of Sessions that have nothing else left. Nothing may be under way."""
        for partition, lot in tuple(self._assignment.parking.items()):
            owned = self._assignment.owned[partition]
            for session_id in lot.exhausted():
                most = 1 if self._is_crowded(owned) else self._batch_size
                batch = self._queue.resume(partition, session_id, most)
                if batch is None:
                    self._assignment.drop((partition,))
                    break
                claims = [claim for claim in batch.claims if isinstance(claim, Claim)]
                lot.resume(session_id, claims, aside=batch.more)
                owned.waiting += (claim for claim in batch.claims if not isinstance(claim, Claim))
                self._assignment.note_parking(partition)

    def next_round(self) -> Round:
        """What is to be tried now: all that was claimed and is due, or one suspect."""
        claims: list[Claimed] = []
        answers: dict[str, Answer] = {}
        now = time.monotonic()
        for lot in self._assignment.parking.values():
            due = lot.due(now)
            answers |= due.answers
            claims += due.claims
        for owned in self._assignment.owned.values():
            claims += owned.waiting
        suspects = [claim for claim in claims if isinstance(claim, Claim) and claim.suspect]
        if not suspects:
            return Round(claims, answers)
        # One that was just claimed is on trial already: no other may be tried meanwhile.
        just_claimed = (claim for claim in suspects if claim in self._assignment.owned[claim.partition].waiting)
        return Round([next(just_claimed, suspects[0])], answers, is_trial=True)

    def tried(self, claims: Sequence[Claimed]) -> None:
        """These are done, or parked."""
        done = set(map(id, claims))
        for owned in self._assignment.owned.values():
            if owned.waiting:
                owned.waiting = [claim for claim in owned.waiting if id(claim) not in done]

    def begin_trial(self, work: Round) -> None:
        """A round of one suspect begins."""
        (alone,) = work.claims
        assert isinstance(alone, Claim), "only commands are suspects"
        self._queue.begin_trial(alone)

    def end_trial(self, work: Round) -> None:
        """This worker outlived it: it was not this suspect that ended the others."""
        self._queue.end_trial(work.claims[0].partition)

    def acknowledged(self, claims: Iterable[Claimed]) -> None:
        """Where one owner ended over commands, and these were the last of them: none of them was why."""
        scarred = {partition: owned for partition, owned in self._assignment.owned.items() if owned.scars}
        if not scarred:
            return
        done = Counter(claim.partition for claim in claims)
        for partition, owned in scarred.items():
            owned.scars = max(0 if not owned.lot else 1, owned.scars - done[partition])
            if not owned.scars:
                self._queue.end_trial(partition)

    def look_again(self, partition: PartitionId) -> None:
        """Of a crowded partition, commands are about to end: look again at what was left on its queue."""
        if self._is_crowded(self._assignment.owned[partition]):
            self._assignment.ready.add(partition)

    def _make_room(self, partition: PartitionId) -> bool:
        """Set aside what this worker cannot hold, so that it goes on claiming for all other Sessions of the partition.

        False when the partition turns out to be another worker's.
        """
        owned = self._assignment.owned[partition]
        excess = owned.lot.excess(crowded=self._is_crowded(owned))
        if excess and not self._queue.set_aside(partition, [(one.claim, one.before) for one in excess]):
            self._assignment.drop((partition,))
            return False
        if excess:
            reach(CrashPoint.AFTER_ASIDE)
        return True

    def _is_crowded(self, owned: Owned) -> bool:
        return self._queue.is_crowded(owned.held(), owned.lot.size())
