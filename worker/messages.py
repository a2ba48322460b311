"""What the scripts that claim and acknowledge are sent, and what they reply (worker/scripts: claim, finish)."""

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

from feedback import keys, wire
from feedback.commands import digest_of
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import CommandFailed, InvalidRequest
from feedback.events import result_of
from feedback.failures import encode_failure
from feedback.live_owners import Registration, owner_from
from feedback.partitions import PartitionId
from worker.claims import (
    MOST_DEATHS,
    Batch,
    Claim,
    Claimed,
    Ending,
    Endings,
    Failed,
    Gone,
    Malformed,
    StreamBehind,
    Taken,
)
from worker.core.batching import Answered

_RQ_ID = re.compile(rb"[A-Za-z0-9_-]+")
_DEADLY = -2

Call: TypeAlias = tuple[Sequence[str], Sequence[Any]]
"""A script's keys and arguments."""


class Wish(StrEnum):
    """Whether to claim from a partition, as the script spells it."""

    YES = "yes"
    IF_RUNG = "rung"
    NO = "no"


@cache
def claim_keys(generation: int, worker_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that the script that claims is given, and the prefixes of those that it makes."""
    names = (keys.owners(generation), keys.trials(generation), keys.wake(worker_id))
    queues = (keys.queue_prefix(generation), keys.claimed_prefix(generation))
    return names, (keys.RQ_JOB_PREFIX, keys.LIVE_PREFIX, keys.OWNER_PREFIX, *queues)


@cache
def finish_keys(partition: PartitionId) -> tuple[str, ...]:
    return (
        keys.claimed(partition),
        keys.events(partition),
        keys.finished_registry(partition),
        keys.failed_registry(partition),
    )


def revisions_of(endings: Endings) -> dict[str, int]:
    """Session id -> the highest revision that an answer tells; what was never rated is left out."""
    revisions: dict[str, int] = {}
    for _, ending in chain.from_iterable(endings.values()):
        if isinstance(ending, Answered) and ending.event.revision > revisions.get(ending.event.session_id, 0):
            revisions[ending.event.session_id] = ending.event.revision
    return revisions


def ending_args(job_id: bytes, ending: Ending) -> tuple[Any, ...]:
    match ending:
        case Answered(event=event, sequence=sequence, encoded=encoded):
            return ("answered", wire.encode_result(result_of(event)), event.revision, sequence, encoded)
        case Failed(failure=failure, traceback=text):
            name = _listed_name(job_id)
            if name.encode() != job_id:
                text += f"Its id was {job_id!r:.200}\n"
            return ("failed", wire.encode_traceback(text), encode_failure(failure), name, "")
        case None:
            return ("gone", "", "", "", "")


def _listed_name(job_id: bytes) -> str:
    """A failed job's id as RQ takes it: on any other, its tools stop and list nothing at all."""
    if _RQ_ID.fullmatch(job_id):
        return job_id.decode()
    return "foreign-" + hashlib.blake2b(job_id, digest_size=16).hexdigest()


def check_finished(endings: Endings, reply: object) -> None:
    """Raise `StreamBehind` when the script that acknowledges did nothing."""
    if isinstance(reply, list):
        raise StreamBehind(list(endings)[reply[1] - 1], reply[2])
    reach(CrashPoint.AFTER_ACKNOWLEDGEMENT)


def read_claims(generation: int, reply: Sequence[Any], *, suspect: bool = False) -> Taken:
    """What the script that claims replied."""
    rings, *answers = reply
    batches: dict[PartitionId, Batch | None] = {}
    for number, answer in zip(answers[::2], answers[1::2], strict=True):
        partition = PartitionId(generation, int(number))
        batches[partition] = None if answer is None else _batch(partition, answer, suspect)
    return Taken(batches, rings)


def _batch(partition: PartitionId, reply: Sequence[Any], suspect: bool) -> Batch:
    more, *jobs = reply
    claims = [
        read_job(partition, job_id, data, live, suspect)
        for job_id, data, live in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
    ]
    return Batch(claims, more=bool(more))


def read_job(
    partition: PartitionId, job_id: bytes, data: bytes | int | None, live: Registration | int, suspect: bool
) -> Claimed:
    if data is None:
        return Gone(partition, job_id)
    if data == _DEADLY:
        reason = f"{MOST_DEATHS} workers ended while they tried it alone; it may have been applied"
        return Malformed(partition, job_id, CommandFailed(reason))
    if isinstance(data, int):
        reason = f"{data} bytes of job data; not read" if data > 0 else "the job's key is no hash"
        return Malformed(partition, job_id, InvalidRequest("$", reason))
    try:
        command = wire.decode_job(data)
    except InvalidRequest as error:
        return Malformed(partition, job_id, error)
    if command.command_id.encode() != job_id:
        return Malformed(partition, job_id, InvalidRequest("$.commandId", "is not the job's id"))
    owner = owner_from(command.session_id, live) if not isinstance(live, int) else None
    # A registration that is of no owner of this Session says nothing about it: the job may name a wrong one.
    known = live is None or owner is not None
    return Claim(partition, job_id, command, digest_of(command), len(data), owner, known, suspect)
