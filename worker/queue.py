"""The queues of one worker's partitions, in Redis: claiming from them, acknowledging, putting back, setting aside."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from redis import Redis

from feedback import keys, wire
from feedback.commands import MAX_COMMAND_BYTES
from feedback.crashpoints import CrashPoint, reach
from feedback.noting import note_revisions, revisions_in
from feedback.partitions import PartitionId
from feedback.scripting import Script
from feedback.settings import Settings
from worker.aside import Aside
from worker.claims import MOST_DEATHS, Batch, Claim, Claimed, Ending, Endings, Recovered, grouped
from worker.messages import (
    Call,
    Wish,
    check_finished,
    claim_keys,
    ending_args,
    finish_keys,
    read_claims,
    read_job,
    revisions_of,
)
from worker.unpublished import Publication

CLAIM = Script("worker", "claim")
FINISH = Script("worker", "finish")
_recover = Script("worker", "recover")
_publish = Script("worker", "publish")

_MAX_BATCH_BYTES = 16 * 2**20
_MAX_HELD_BYTES = 8 * 2**20


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
        names, prefixes = claim_keys(generation, self._worker_id)
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
        return Batch([read_job(partition, job_id, data, -1, suspect=False) for job_id, data in pairs], more=more)

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

    def take_events_back(self, partition: PartitionId) -> None:
        """Forget a partition's events, how far they were projected, and all cached lists: some may be made of them."""
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.execute_command("DEL", keys.events(partition), keys.LIST_ERA)
            pipeline.execute_command("HDEL", keys.checkpoint(partition.generation), partition.number)
            pipeline.execute()

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
            names += finish_keys(partition)
            args += (partition.number, int(partition in past_gap), len(ended))
            for claim, ending in ended:
                args += (claim.job_id, *ending_args(claim.job_id, ending))
        revisions = revisions_of(endings)
        names += map(keys.list_cache, revisions)
        args += revisions.values()
        return names, args
