"""One batch: barrier -> decide -> one fenced store transaction. Knows no Redis."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from feedback.commands import PutCommand
from feedback.errors import CommandFailed, FeedbackError
from feedback.failures import failure_of
from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore
from worker.barrier import LogBarrier
from worker.claims import Claim, Claimed, Ending, Failed, Malformed
from worker.core.batching import Deferred, Outcome, Pending, Refused, decide_batch

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
        store: SidecarStore,
        barrier: LogBarrier,
        *,
        max_note_bytes: int,
        clock_ms: Callable[[], int],
        new_version: Callable[[], str],
    ) -> None:
        self._store = store
        self._barrier = barrier
        self._max_note_bytes = max_note_bytes
        self._clock_ms = clock_ms
        self._new_version = new_version

    def process(self, batch: Sequence[Claimed], owned: Mapping[PartitionId, Ownership]) -> Processed:
        """Process claims in order and commit what they come to. Running a batch again gives the same answers.

        Raises:
            PartitionsFenced: some partition has a newer owner; nothing was committed.
            StoreUnavailable: nothing was committed, or the store cannot say; run the batch again.
        """
        claims = [claim for claim in batch if isinstance(claim, Claim)]
        outcomes = dict(zip(map(id, claims), self._outcomes(claims, owned), strict=True))
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

    def _outcomes(self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership]) -> "list[Outcome | Failed]":
        if not claims:
            return []
        try:
            return list(self._commit(claims, owned))
        except FeedbackError:
            raise
        except Exception:
            if len(claims) == 1:
                logger.exception("command broke command_id=%s", claims[0].command.command_id)
                return [_broken()]
            # One of them breaks the code: run them one by one, so that it takes no other with it.
            return [outcome for claim in claims for outcome in self._outcomes([claim], owned)]

    def _commit(self, claims: Sequence[Claim], owned: Mapping[PartitionId, Ownership]) -> Sequence[Outcome]:
        barriers = self._barrier.check(_sessions(claims))
        partitions = {claim.partition: owned[claim.partition] for claim in claims}
        batch = [
            Pending(
                command=claim.command,
                digest=claim.digest,
                partition=claim.partition,
                epoch=partitions[claim.partition].epoch,
                barrier=barriers[claim.command.session_id],
                version=self._new_version(),
            )
            for claim in claims
        ]
        epochs = {partition: ownership.epoch for partition, ownership in partitions.items()}
        with self._store.transaction(epochs) as transaction:
            snapshot = transaction.load(
                [claim.command.command_id for claim in claims],
                [(claim.command.session_id, claim.command.message_id) for claim in claims],
            )
            decisions = decide_batch(
                snapshot,
                batch,
                {partition: ownership.sequence for partition, ownership in partitions.items()},
                now_ms=self._clock_ms(),
                max_note_bytes=self._max_note_bytes,
            )
            transaction.apply(decisions.changes, decisions.records, decisions.deadlines)
        for record in decisions.records:
            partitions[record.partition].sequence = record.sequence
        return decisions.outcomes


def _sessions(claims: Sequence[Claim]) -> dict[str, bool]:
    """The Sessions to check; True where a put needs the log durable."""
    sessions: dict[str, bool] = {}
    for claim in claims:
        session_id = claim.command.session_id
        sessions[session_id] = sessions.get(session_id, False) or isinstance(claim.command, PutCommand)
    return sessions


def _broken() -> Failed:
    """The exception being handled, as a command's end: its traceback is for the operator, its name for the caller."""
    text = traceback.format_exc()
    return Failed(failure_of(CommandFailed(text.strip().splitlines()[-1])), text)
