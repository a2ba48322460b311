"""One command outside the loop: under its partition's lease and fence, after whatever was claimed before it."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from barrier.flush import FlushDesk
from barrier.rules import Answer, FlushNeeded
from feedback.agent_desk import AgentDesk
from feedback.commands import Command, digest_of
from feedback.errors import FeedbackError, QueueUnavailable
from feedback.events import Event
from feedback.evidence import LogQuestion
from feedback.failures import error_of
from feedback.live_owners import live_owners
from feedback.partitions import PartitionId
from persistence.sidecar.store import PartitionsFenced
from worker.acknowledge import acknowledge
from worker.claims import Claim, Claimed, Ending, Failed
from worker.core.batching import Answered
from worker.core.shares import SINGLE_PREFIX
from worker.engine import Ownership, Processed
from worker.queue import ClaimQueue
from worker.remote import EvidenceNeeded, OutOfTurn, question_of
from worker.runtime import Runtime
from worker.takeover import take_over
from worker.turn_taker import TurnTaker
from worker.turns import settled_topology, turn_deadline, until_unfenced


def apply_one(runtime: Runtime, command: Command) -> Event:
    """Seize the command's partition, finish what its owner had claimed, apply the command, and give it back.

    A worker that owned the partition is fenced off and claims it anew afterwards. Others that run single
    commands of the same partition take turns.

    Raises:
        FeedbackError: the command failed, or could not have its turn in time (`QueueUnavailable`).
    """
    deadline = turn_deadline(runtime.settings)
    return until_unfenced(lambda: _in_turn(runtime, command, deadline), deadline)


def _in_turn(runtime: Runtime, command: Command, deadline: float) -> Event:
    topology = settled_topology(runtime.store, runtime.settings)
    partition = topology.partition_of(command.session_id)
    me = f"{SINGLE_PREFIX}{uuid4().hex}"
    with TurnTaker(runtime.redis, me, topology, runtime.settings.lease_ttl) as taker:
        taker.seize([partition], deadline)
        return _apply(runtime, me, partition, command)


def _apply(runtime: Runtime, me: str, partition: PartitionId, command: Command) -> Event:
    queue = ClaimQueue(runtime.redis, me, runtime.settings)
    if queue.waits_aside(partition, command.session_id):
        raise QueueUnavailable("many commands of its Session wait for another try before it; run the job again later")
    taken = next(take_over(queue, runtime.store, [partition], me), None)
    if taken is None:
        raise PartitionsFenced([partition])
    ownership = {partition: Ownership(taken.fence.epoch, taken.fence.sequence)}
    earlier = _claim(queue, partition, taken.left.commands)
    own = Claim(partition, command.command_id.encode(), command, digest_of(command), 0)
    processed = _process(runtime, me, [*earlier, own], ownership)
    acknowledge(
        queue, runtime.store, [(claim, end) for claim, end in processed.ended if not _is_failed(claim, end, own)]
    )
    queue.recover(partition)  # what had to wait goes back, in order
    for claim, ending in processed.ended:
        if claim is own and isinstance(ending, Answered):
            return ending.event
        if claim is own and isinstance(ending, Failed):
            raise error_of(ending.failure)
    raise next(error for claim, error in processed.deferred if claim is own)


def _process(
    runtime: Runtime, worker_id: str, batch: Sequence[Claimed], ownership: Mapping[PartitionId, Ownership]
) -> Processed:
    """Process a batch, and again what had to wait for its Session's live owner or its host's agent, once they were
    asked, and for commands before it."""
    live = live_owners(runtime.redis, {claim.command.session_id for claim in batch if isinstance(claim, Claim)})
    ended: list[tuple[Claimed, Ending]] = []
    deferred: list[tuple[Claim, FeedbackError]] = []
    answers: Mapping[str, Answer] = {}
    while batch:
        processed = runtime.engine.process(batch, ownership, live, answers)
        ended += processed.ended
        # Each try ends the first command of a Session, or says why it cannot.
        waiting: dict[str, FeedbackError] = {}
        for claim, error in processed.deferred:
            waiting.setdefault(claim.command.session_id, error)
        again = {key for key, error in waiting.items() if isinstance(error, FlushNeeded | EvidenceNeeded | OutOfTurn)}
        deferred += [one for one in processed.deferred if one[0].command.session_id not in again]
        left = [claim for claim, _ in processed.deferred if claim.command.session_id in again]
        answers = _asked(runtime, worker_id, left, waiting)
        batch = left
    return Processed(ended, deferred)


def _asked(
    runtime: Runtime, worker_id: str, batch: Sequence[Claim], waiting: Mapping[str, FeedbackError]
) -> dict[str, Answer]:
    """What live owners and agents answer, by Session; given why each Session's commands wait."""
    answers: dict[str, Answer] = {}
    if owners := [error.owner for error in waiting.values() if isinstance(error, FlushNeeded)]:
        answers |= FlushDesk(runtime.redis, worker_id, runtime.settings.flush_timeout).ask(owners)
    questions: dict[str, list[LogQuestion]] = {}
    for session_id, error in waiting.items():
        if isinstance(error, EvidenceNeeded):
            commands = [claim.command for claim in batch if claim.command.session_id == session_id]
            questions.setdefault(error.host, []).append(question_of(error.host, commands))
    if questions:
        answers |= AgentDesk(runtime.redis, worker_id, runtime.settings.agent_timeout).ask(questions)
    return answers


def _claim(queue: ClaimQueue, partition: PartitionId, most: int) -> list[Claimed]:
    """What the last owner had claimed: it stood before the single command on the queue."""
    claims: list[Claimed] = []
    while len(claims) < most:
        batch = queue.claim({partition: len(claims)}, most - len(claims))[partition]
        if batch is None or not batch.claims:
            break
        claims += batch.claims
    return claims


def _is_failed(claim: Claimed, ending: object, own: Claim) -> bool:
    """RQ itself records the failure of the job that it runs."""
    return claim is own and isinstance(ending, Failed)
