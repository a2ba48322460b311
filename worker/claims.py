"""Claiming commands from RQ's queues and acknowledging them: the worker's side of Redis.

Claimed ids lie on a list of ours, not on RQ's intermediate one: RQ's housekeeping, run by any stock
worker, fails what it finds there for a minute (PEERS, 3.3), and a parked Session may wait longer.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any, Self, TypeAlias

from msgspec import Struct
from redis import Redis

from feedback import keys, wire
from feedback.commands import MAX_COMMAND_BYTES, Command, digest_of
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import CommandFailed, FeedbackError, InvalidRequest
from feedback.events import result_of
from feedback.failures import Failure, encode_failure, failure_of
from feedback.flushing import LiveOwner
from feedback.live_owners import Registration, owner_from
from feedback.noting import note_revisions, revisions_in
from feedback.partitions import PartitionId
from feedback.scripting import Script
from feedback.settings import Settings
from worker.aside import Aside
from worker.core.batching import Answered
from worker.unpublished import Publication

CLAIM = Script("worker", "claim")
FINISH = Script("worker", "finish")
_recover = Script("worker", "recover")
_publish = Script("worker", "publish")

_RQ_ID = re.compile(rb"[A-Za-z0-9_-]+")

_DEADLY = -2
_MAX_BATCH_BYTES = 16 * 2**20
_MAX_HELD_BYTES = 8 * 2**20

MOST_DEATHS = 3
"""Workers that may end while they try one command alone, before it goes to the failed registry."""


class Claim(Struct, frozen=True):
    """One claimed command."""

    partition: PartitionId
    job_id: bytes
    command: Command
    digest: bytes
    size: int
    """Bytes of its job data: what holding it costs."""
    owner: LiveOwner | None = None
    """The Session's live owner when the command was claimed."""
    owner_known: bool = False
    """Whether the claim says who that is; if not, ask (`feedback.live_owners`)."""
    suspect: bool = False
    """Two workers ended while it was claimed, so it is tried alone: it may be what kills them."""


class Malformed(Struct, frozen=True):
    """A claimed job that is never executed: it is no command of ours, or kills whoever tries."""

    partition: PartitionId
    job_id: bytes
    error: FeedbackError


class Gone(Struct, frozen=True):
    """A claimed id whose job no longer exists: somebody deleted it, or Redis lost it."""

    partition: PartitionId
    job_id: bytes


Claimed: TypeAlias = Claim | Malformed | Gone


class Failed(Struct, frozen=True):
    """A command's end in the failed registry."""

    failure: Failure
    traceback: str

    @classmethod
    def of(cls, error: FeedbackError) -> Self:
        """A typed failure; its sentence says all, so there is no traceback to show."""
        return cls(failure_of(error), f"{type(error).__module__}.{type(error).__qualname__}: {error}\n")


Ending: TypeAlias = Answered | Failed | None
"""What a claimed command came to; None for a job that is gone."""


Endings: TypeAlias = Mapping[PartitionId, Sequence[tuple[Claimed, Ending]]]
"""What a batch came to, by partition, in each in claim order."""
Call: TypeAlias = tuple[Sequence[str], Sequence[Any]]
"""A script's keys and arguments."""


class Wish(StrEnum):
    """Whether to claim from a partition, as the script spells it."""

    YES = "yes"
    IF_RUNG = "rung"
    NO = "no"


class Batch(Struct, frozen=True):
    """What one partition gave: claims in queue order, and whether more waits."""

    claims: Sequence[Claimed]
    more: bool


class Recovered(Struct, frozen=True):
    """A partition as its last owner left it: commands put back, and the last sequence in its event stream (0: none)."""

    commands: int
    published: int
    again: bool = False
    """Its owners ended twice in a row over commands that they had claimed."""


class StreamBehind(Exception):
    """The partition's event stream lacks events that the store has, past `sequence`. Nothing was acknowledged."""

    def __init__(self, partition: PartitionId, sequence: int) -> None:
        super().__init__(f"event stream {partition} ends at {sequence}")
        self.partition = partition
        self.sequence = sequence


class Taken(Struct, frozen=True):
    """What a claim brought: by partition, None for one that is another worker's now; and rings of the wake list."""

    batches: Mapping[PartitionId, Batch | None]
    rings: Sequence[bytes]


class ClaimQueue:
    """The queues of the partitions that one worker owns, all of one generation."""

    def __init__(self, redis: Redis, worker_id: str, settings: Settings) -> None:
        self._redis = redis
        self._worker_id = worker_id
        self._settings = settings
        self._aside = Aside(redis, worker_id)
        self.event_retention = settings.event_retention
        # Far more than a batch: past it, the parked commands of a Session are set aside, all but the first.
        self._max_held = 64 * settings.batch_size

    def is_crowded(self, commands: int, size: int) -> bool:
        """Whether so many claimed commands of one partition, of so many bytes, are as much as a worker may hold."""
        return commands >= self._max_held or size >= _MAX_HELD_BYTES

    def claim(
        self, held: Mapping[PartitionId, int], most: int, *, suspect: bool = False
    ) -> Mapping[PartitionId, Batch | None]:
        """Claim up to `most` commands in one round trip; None for a partition that is another worker's now.

        `held` says how many commands of each partition this worker has claimed and not finished, to the one. A
        `suspect` command is claimed by itself, of one partition: its trial begins, see `end_trial`.
        """
        if not held:
            return {}
        generation = next(iter(held)).generation
        asked = {partition: (number, Wish.YES) for partition, number in held.items()}
        reply = CLAIM(self._redis, *self.claim_call(generation, asked, most, suspect=suspect))
        return read_claims(generation, reply, suspect=suspect).batches

    def claim_call(
        self,
        generation: int,
        asked: Mapping[PartitionId, tuple[int, Wish]],
        most: int,
        *,
        suspect: bool = False,
        rings: int = 0,
    ) -> Call:
        """Keys and arguments of the script that claims; `read_claims` reads its reply.

        `asked` names all partitions of which commands are held, and how many, or wanted. Up to `rings` entries of
        the wake list are taken off, and what they name is claimed from as well.
        """
        names, prefixes = _claim_keys(generation, self._worker_id)
        args: list[str | int] = [self._worker_id, most, _MAX_BATCH_BYTES, 2 * MAX_COMMAND_BYTES, *prefixes]
        args += (MOST_DEATHS if suspect else "", self._max_held, rings)
        for partition, (held, wish) in asked.items():
            args += (partition.number, held, wish)
        return names, args

    def set_aside(self, partition: PartitionId, claims: Sequence[tuple[Claim, bool]]) -> bool:
        """Let claimed commands wait in Redis alone: each behind those of its Session that do, or before them.

        False, and nothing was done, when the partition is another worker's.
        """
        commands = [(claim.command.session_id, before, claim.job_id) for claim, before in claims]
        return self._aside.add(partition, commands)

    def resume(self, partition: PartitionId, session_id: str, most: int) -> Batch | None:
        """Claim the first commands of a Session again that were set aside; None when it is another worker's."""
        reply = self._aside.resume(partition, session_id, most)
        if reply is None:
            return None
        more, jobs = reply
        pairs = zip(jobs[::2], jobs[1::2], strict=True)
        return Batch([_read(partition, job_id, data, -1, suspect=False) for job_id, data in pairs], more=more)

    def waits_aside(self, partition: PartitionId, session_id: str) -> bool:
        """Whether commands of this Session were set aside, by whoever owns the partition."""
        return self._aside.has(partition, session_id)

    def begin_trial(self, claim: Claim) -> None:
        """Note that a claimed command is tried alone: should this worker end before `end_trial`, that is why."""
        self._redis.execute_command(
            "HSET", keys.trials(claim.partition.generation), claim.partition.number, claim.job_id
        )

    def end_trial(self, partition: PartitionId) -> None:
        """What the last owner ended over, or was tried alone, did no harm."""
        self._redis.execute_command("HDEL", keys.trials(partition.generation), partition.number)

    def recover(self, partition: PartitionId, *, bereft: bool = False) -> Recovered | None:
        """Put what was claimed back at the head of the queue, in order, and behind it what was set aside.

        None when it is another worker's. Of the commands put back, only those that were claimed are counted.

        `bereft`: its last owner ended without doing so. What that one tried alone is charged with a death, and
        until `end_trial` the partition remembers.
        """
        if not self._aside.put_back(partition):
            return None
        names = (
            keys.owners(partition.generation),
            keys.claimed(partition),
            keys.queue(partition),
            keys.events(partition),
            keys.trials(partition.generation),
        )
        reply = _recover(self._redis, names, (self._worker_id, partition.number, keys.RQ_JOB_PREFIX, int(bereft)))
        return None if reply is None else Recovered(reply[0], reply[1], bool(reply[2]))

    def publication(self, partition: PartitionId) -> Publication:
        """What is known of the partition's events that were not published."""
        return Publication(self._redis, partition, self._worker_id)

    def publish(self, partition: PartitionId, events: Sequence[tuple[int, bytes]]) -> None:
        """Add recorded events that the stream lacks."""
        note_revisions(self._redis, revisions_in(event for _, event in events))
        args: list[Any] = [self._settings.event_retention]
        for event in events:
            args += event
        _publish(self._redis, (keys.events(partition),), args)

    def finish(self, endings: Sequence[tuple[Claimed, Ending]], *, past_gap: Collection[PartitionId] = ()) -> None:
        """Acknowledge a batch atomically; repeating it changes nothing.

        Raises:
            StreamBehind: events before these are missing from a stream, which is of no partition in `past_gap`;
                nothing was done.
        """
        by_partition = grouped(endings)
        call = self.finish_call(by_partition, past_gap=past_gap)
        reach(CrashPoint.BEFORE_ACKNOWLEDGEMENT)
        check_finished(by_partition, FINISH(self._redis, *call))

    def finish_call(self, endings: Endings, *, past_gap: Collection[PartitionId] = ()) -> Call:
        """Keys and arguments of the script that acknowledges; `check_finished` looks at its reply."""
        names = [keys.owners(next(iter(endings)).generation)]
        args: list[Any] = [
            self._worker_id,
            self._settings.result_ttl,
            self._settings.failure_ttl,
            self._settings.event_retention,
            keys.RQ_JOB_PREFIX,
            keys.RQ_RESULTS_PREFIX,
            wire.rq_now(),
            len(endings),
            keys.CACHE_TTL_S,
        ]
        for partition, ended in endings.items():
            names += _finish_keys(partition)
            args += (partition.number, int(partition in past_gap), len(ended))
            for claim, ending in ended:
                args += (claim.job_id, *_ending_args(claim.job_id, ending))
        revisions = _revisions(endings)
        names += map(keys.list_cache, revisions)
        args += revisions.values()
        return names, args


@cache
def _claim_keys(generation: int, worker_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that the script that claims is given, and the prefixes of those that it makes."""
    names = (keys.owners(generation), keys.trials(generation), keys.wake(worker_id))
    queues = (keys.queue_prefix(generation), keys.claimed_prefix(generation))
    return names, (keys.RQ_JOB_PREFIX, keys.LIVE_PREFIX, keys.OWNER_PREFIX, *queues)


@cache
def _finish_keys(partition: PartitionId) -> tuple[str, ...]:
    return (
        keys.claimed(partition),
        keys.events(partition),
        keys.finished_registry(partition),
        keys.failed_registry(partition),
    )


def grouped(endings: Iterable[tuple[Claimed, Ending]]) -> Endings:
    """Endings by partition, in each of which they keep their order."""
    groups: dict[PartitionId, list[tuple[Claimed, Ending]]] = {}
    for ended in endings:
        groups.setdefault(ended[0].partition, []).append(ended)
    return groups


def _revisions(endings: Endings) -> dict[str, int]:
    """Session id -> the highest revision that an answer tells; what was never rated is left out."""
    revisions: dict[str, int] = {}
    for _, ending in chain.from_iterable(endings.values()):
        if isinstance(ending, Answered) and ending.event.revision > revisions.get(ending.event.session_id, 0):
            revisions[ending.event.session_id] = ending.event.revision
    return revisions


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
        _read(partition, job_id, data, live, suspect)
        for job_id, data, live in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
    ]
    return Batch(claims, more=bool(more))


def _read(
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


def _ending_args(job_id: bytes, ending: Ending) -> tuple[Any, ...]:
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
