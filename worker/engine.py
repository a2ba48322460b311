"""One batch: barrier -> decide -> one fenced store transaction. Knows no Redis."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from barrier.rules import Answer, Barrier, DurabilityBarrier, Need
from feedback.commands import PutCommand
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import CommandFailed, FeedbackError
from feedback.failures import failure_of
from feedback.flushing import LiveOwner
from feedback.partitions import PartitionId
from worker.claims import Claim, Claimed, Ending, Failed, Malformed
from worker.core.batching import Deferred, Outcome, Pending, Refused, decide_batch
from worker.meter import Transactions
from worker.remote import EvidenceNeeded, OutOfTurn, in_turn

logger = logging.getLogger(__name__)


class Ownership(Struct):
    """A partition as its owner holds it in the store: the fencing token, and the last committed sequence."""

    epoch: int
    sequence: int


class Processed(Struct, frozen=True):
    """What became of a batch: commands that ended, and commands that must wait with why, both in claim order."""

    ended: Sequence[tuple[Claimed, Ending]]
    deferred: Sequence[tuple[Claim, FeedbackError]]


class Engine:
    """Turns claimed commands into outcomes that are on stable storage."""

    def __init__(
        self,
        store: Transactions,
        barrier: DurabilityBarrier,
        *,
        max_note_bytes: int,
        retention_ms: int,
        clock_ms: Callable[[], int],
        new_version: Callable[[], str],
    ) -> None:
        self._store = store
        self._barrier = barrier
        self._max_note_bytes = max_note_bytes
        self._retention_ms = retention_ms
        self._clock_ms = clock_ms
        self._new_version = new_version

    def process(
        self,
        batch: Sequence[Claimed],
        owned: Mapping[PartitionId, Ownership],
        live: Mapping[str, LiveOwner],
        answers: Mapping[str, Answer],
    ) -> Processed:
        """Process claims in order and commit what they come to. Running a batch again gives the same answers.

        `live` are the Sessions' live owners, `answers` what owners and agents said who were asked for these commands.
        A Session whose owner has yet to flush is deferred with `FlushNeeded`, one whose host's agent has yet to be
        asked with `EvidenceNeeded`; what cannot be judged together with earlier ones with `OutOfTurn`.

        Raises:
            PartitionsFenced: some partition has a newer owner; nothing was committed.
            StoreUnavailable: nothing was committed, or the store cannot say; run the batch again.
        """
        claims, later = in_turn([claim for claim in batch if isinstance(claim, Claim)], answers)
        needs = _needs(claims, live, answers)
        outcomes = dict(zip(map(id, claims), self._outcomes(claims, owned, needs), strict=True))
        outcomes |= {id(claim): Deferred(OutOfTurn()) for claim in later}
        ended: list[tuple[Claimed, Ending]] = []
        deferred: list[tuple[Claim, FeedbackError]] = []
        for claim in batch:
            if not isinstance(claim, Claim):
                ended.append((claim, Failed.of(claim.error) if isinstance(claim, Malformed) else None))
                continue
            outcome = outcomes[id(claim)]
            if isinstance(outcome, Deferred):
                deferred.append((claim, outcome.error))
            else:
                ended.append((claim, Failed.of(outcome.error) if isinstance(outcome, Refused) else outcome))
        return Processed(ended, deferred)

    def _outcomes(
        self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership], needs: Mapping[str, Need]
    ) -> Sequence[Outcome | Failed]:
        if not claims:
            return ()
        try:
            return self._commit(claims, owned, needs)
        except FeedbackError:
            raise
        except Exception:
            if len(claims) == 1:
                logger.exception("command broke command_id=%s", claims[0].command.command_id)
                return (_broken(),)
        return self._one_by_one(claims, owned, needs)

    def _one_by_one(
        self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership], needs: Mapping[str, Need]
    ) -> Sequence[Outcome | Failed]:
        """One of the commands breaks the code: let it take no other with it, and keep each Session's order."""
        outcomes: list[Outcome | Failed] = []
        deferred: dict[str, Deferred] = {}
        for claim in claims:
            session_id = claim.command.session_id
            outcome = deferred.get(session_id) or self._outcomes([claim], owned, needs)[0]
            if isinstance(outcome, Deferred):
                deferred[session_id] = outcome
            outcomes.append(outcome)
        return outcomes

    def _commit(
        self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership], needs: Mapping[str, Need]
    ) -> Sequence[Outcome]:
        barriers = self._barrier.check({claim.command.session_id: needs[claim.command.session_id] for claim in claims})
        asking = {key: one for key, one in barriers.items() if isinstance(one, EvidenceNeeded)}
        if not asking:
            return self._decide(claims, owned, barriers)
        # They will be back with the evidence: until then the store is not asked about them.
        others = [claim for claim in claims if claim.command.session_id not in asking]
        decided = iter(self._decide(others, owned, barriers) if others else ())
        return [
            Deferred(asking[claim.command.session_id]) if claim.command.session_id in asking else next(decided)
            for claim in claims
        ]

    def _decide(
        self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership], barriers: Mapping[str, Barrier]
    ) -> Sequence[Outcome]:
        reach(CrashPoint.AFTER_BARRIER)
        epochs: dict[PartitionId, int] = {}
        sequences: dict[PartitionId, int] = {}
        batch: list[Pending] = []
        for claim in claims:
            ownership = owned[claim.partition]
            epochs[claim.partition], sequences[claim.partition] = ownership.epoch, ownership.sequence
            batch.append(
                Pending(
                    command=claim.command,
                    digest=claim.digest,
                    partition=claim.partition,
                    epoch=ownership.epoch,
                    barrier=barriers[claim.command.session_id],
                    version=self._new_version(),
                )
            )
        reach(CrashPoint.BEFORE_COMMIT)
        with self._store.transaction(epochs) as transaction:
            snapshot = transaction.load(
                [claim.command.command_id for claim in claims],
                [(claim.command.session_id, claim.command.message_id) for claim in claims],
            )
            decisions = decide_batch(
                snapshot,
                batch,
                sequences,
                now_ms=self._clock_ms(),
                max_note_bytes=self._max_note_bytes,
                retention_ms=self._retention_ms,
            )
            transaction.apply(decisions.changes, (*decisions.records, *decisions.expired), decisions.deadlines)
        for record in decisions.records:
            owned[record.partition].sequence = record.sequence
        reach(CrashPoint.AFTER_COMMIT)
        return decisions.outcomes


def _needs(claims: Sequence[Claim], live: Mapping[str, LiveOwner], answers: Mapping[str, Answer]) -> dict[str, Need]:
    """What the barrier has to see to: only a put needs the log durable."""
    durable: dict[str, bool] = {}
    hosts: dict[str, str | None] = {}
    for claim in claims:
        session_id = claim.command.session_id
        durable[session_id] = durable.get(session_id, False) or isinstance(claim.command, PutCommand)
        hosts[session_id] = claim.command.host
    return {
        session_id: Need(
            durable=needed, host=hosts[session_id], owner=live.get(session_id), answer=answers.get(session_id)
        )
        for session_id, needed in durable.items()
    }


def _broken() -> Failed:
    """The exception being handled, as a command's end: its traceback is for the operator, its name for the caller."""
    text = traceback.format_exc()
    return Failed(failure_of(CommandFailed(text.strip().splitlines()[-1])), text)
