"""Commands that failed for good, in RQ's failed registries: found, put back, dropped. For operators.

Nothing is restored to an RQ `Job`, and what is read is bounded. Any number of processes may do any of this at once:
each change is one script that leaves alone what somebody else retried or dropped meanwhile.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.commands import MAX_COMMAND_BYTES
from feedback.errors import QueueUnavailable
from feedback.flows import MAX_QUEUED
from feedback.partitions import TOPOLOGY_FIELDS, PartitionId, Topology
from feedback.scripting import Script
from worker.letters import Chosen, DeadLetter, Place, Row, letter_of, readable_traceback

_page = Script("worker", "dlq_page")
_read = Script("worker", "dlq_read")
_traceback = Script("worker", "dlq_traceback")
_retry = Script("worker", "dlq_retry")
_drop = Script("worker", "dlq_drop")

_PAGE = 256
_CHUNK = 128
_MAX_READ_BYTES = 8 * 2**20
_MAX_FIELD_BYTES = 2**16
_MAX_TRACEBACK_BYTES = 2**20

_QUEUE = re.compile(rb"feedback-(\d{1,9})-(\d{1,9})$")


class Retried(Struct, frozen=True):
    """What became of commands that were to be put back.

    `absent`: somebody else retried or dropped them meanwhile. `full`: their queue is as long as it may be; they
    stay failed.
    """

    retried: int
    absent: int
    full: int


class DeadLetters:
    """The failed registries of all generations. Every method raises `redis.exceptions.RedisError`."""

    def __init__(self, redis: Redis, *, max_queued: int = MAX_QUEUED) -> None:
        self._redis = redis
        self._max_queued = max_queued

    def letters(self, after: Place | None = None) -> Iterator[DeadLetter]:
        """All of them, or those behind a place: by partition, oldest failure first. Memory is that of one page."""
        for partition in self._registries():
            if after is None or partition >= after.partition:
                yield from self._registry(partition, after if after and after.partition == partition else None)

    def find(self, job_ids: Sequence[bytes]) -> list[DeadLetter]:
        """Those of these ids that are there, by partition."""
        partitions = self._registries()
        with self._redis.pipeline(transaction=False) as pipeline:
            for partition in partitions:
                pipeline.execute_command("ZMSCORE", keys.failed_registry(partition), *job_ids)
            replies = pipeline.execute()
        places = [
            Place(partition, _score(score), job_id)
            for partition, scores in zip(partitions, replies, strict=True)
            for job_id, score in zip(job_ids, scores, strict=True)
            if score is not None
        ]
        return list(self._read(places))

    def traceback(self, letter: DeadLetter) -> str | None:
        """Why it failed last, as the worker saw it; None when nothing is kept."""
        stream = keys.RQ_RESULTS_PREFIX.encode() + letter.place.job_id
        return readable_traceback(_traceback(self._redis, (stream,), (_MAX_TRACEBACK_BYTES,)))

    def retry(self, chosen: Sequence[Chosen]) -> Retried:
        """Put commands back, in this order, at the end of the queues where their Sessions are served now.

        When it raises, some may have been put back; do it again.

        Raises:
            QueueUnavailable: no worker ever set the server up.
        """
        counts = {b"retried": 0, b"absent": 0, b"full": 0}
        full: set[PartitionId] = set()
        topology = self._topology()
        start = 0
        while start < len(chosen):
            chunk = chosen[start : start + _CHUNK]
            places = [topology.partition_of(one.session_id) for one in chunk]
            going = [(one, place) for one, place in zip(chunk, places, strict=True) if place not in full]
            outcomes = self._put_back(going, topology)
            if outcomes is None:
                topology = self._topology()
                continue
            for (_, place), outcome in zip(going, outcomes, strict=True):
                counts[outcome] += 1
                if outcome == b"full":
                    full.add(place)
            counts[b"full"] += len(chunk) - len(going)
            start += len(chunk)
        return Retried(counts[b"retried"], counts[b"absent"], counts[b"full"])

    def drop(self, chosen: Sequence[Chosen]) -> int:
        """Remove jobs with their results for good; how many were there.

        When it raises, some may have been removed; do it again.
        """
        removed = 0
        for start in range(0, len(chosen), _CHUNK):
            args: list[str | bytes] = [keys.RQ_JOB_PREFIX, keys.RQ_RESULTS_PREFIX]
            for one in chosen[start : start + _CHUNK]:
                args += (keys.failed_registry(one.place.partition), one.place.job_id, one.token)
            removed += _drop(self._redis, (), args)
        return removed

    def _put_back(self, going: Sequence[tuple[Chosen, PartitionId]], topology: Topology) -> list[bytes] | None:
        """One outcome per command; None when the topology is another one by now."""
        generation = topology.generation
        args: list[Any] = [
            generation,
            topology.partitions,
            self._max_queued,
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            keys.RQ_JOB_PREFIX,
            keys.queue_prefix(generation),
            keys.queue_name_prefix(generation),
            keys.WAKE_PREFIX,
            keys.WAKE_TTL_S,
        ]
        for one, place in going:
            args += (keys.failed_registry(one.place.partition), one.place.job_id, one.token, place.number)
            args.append("{}-{}".format(*one.order))
        reply = _retry(self._redis, (keys.TOPOLOGY, keys.RQ_QUEUES, keys.owners(generation)), args)
        return reply if isinstance(reply, list) else None

    def _registry(self, partition: PartitionId, after: Place | None) -> Iterator[DeadLetter]:
        while True:
            behind = (after.score, after.job_id) if after else ("-inf", b"")
            entries = _page(self._redis, (keys.failed_registry(partition),), (_PAGE, *behind))
            places = [
                Place(partition, score.decode(), job_id)
                for job_id, score in zip(entries[::2], entries[1::2], strict=True)
            ]
            yield from self._read(places)
            if len(places) < _PAGE:
                return
            after = places[-1]

    def _read(self, places: Sequence[Place]) -> Iterator[DeadLetter]:
        """These entries' jobs, as many at once as their data allows."""
        bounds = (2 * MAX_COMMAND_BYTES, _MAX_FIELD_BYTES, _MAX_READ_BYTES)
        start = 0
        while start < len(places):
            ids = (place.job_id for place in places[start : start + _PAGE])
            rows: list[Row] = _read(self._redis, (), (*bounds, keys.RQ_JOB_PREFIX, keys.RQ_RESULTS_PREFIX, *ids))
            for place, row in zip(places[start:], rows, strict=False):
                letter = letter_of(place, row)
                if letter is not None:
                    yield letter
            start += len(rows)

    def _registries(self) -> list[PartitionId]:
        """Partitions whose failed registry holds anything: of this generation, and of all that RQ remembers."""
        topology = self._known_topology()
        partitions = set(topology.all_partitions() if topology else ())
        for member in self._redis.sscan_iter(keys.RQ_QUEUES, count=_PAGE):
            match = _QUEUE.search(member)
            if match:
                partitions.add(PartitionId(int(match[1]), int(match[2])))
        ordered = sorted(partitions)
        with self._redis.pipeline(transaction=False) as pipeline:
            for partition in ordered:
                pipeline.zcard(keys.failed_registry(partition))
            # One that is no sorted set is somebody else's, and hides no other.
            sizes = pipeline.execute(raise_on_error=False)
        return [partition for partition, size in zip(ordered, sizes, strict=True) if isinstance(size, int) and size]

    def _known_topology(self) -> Topology | None:
        try:
            return Topology.of_fields(self._redis.hmget(keys.TOPOLOGY, *TOPOLOGY_FIELDS))
        except ValueError:
            return None

    def _topology(self) -> Topology:
        topology = self._known_topology()
        if topology is None:
            raise QueueUnavailable("no worker has set this server up yet: start one (`feedback worker`)")
        return topology


def _score(score: bytes | float) -> str:
    return score.decode() if isinstance(score, bytes) else f"{score:.17g}"
