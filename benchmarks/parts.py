"""The parts of the way of a command, one by one and in their order, each on the real server, disk and store."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

from barrier.logs import LogBarrier
from barrier.rules import Need
from benchmarks.deployment import Deployment, deployed
from benchmarks.figures import Figure, figure
from benchmarks.measure import Run
from benchmarks.puts import Load
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback import Put, wire
from feedback.calls import wall_clock_ms
from feedback.commands import digest_of
from feedback.connection import connect
from feedback.partitions import PartitionId
from persistence.session_log import SessionLogs
from projections.runner import Follower
from worker.claims import Claim
from worker.core.batching import Answered, Decisions, Pending, decide_batch
from worker.leases import LeaseTable
from worker.queue import ClaimQueue

_WORKER = "benchmark"
_LEASE_S = 600.0


def parts(run: Run) -> list[Figure]:
    """Microseconds per command of each part, in batches of 1 and of 256."""
    figures: list[Figure] = []
    sessions, messages = session_ids(run.size(256, 32)), message_ids(run.size(64, 16))
    with run.home() as home, deployed(Path(home), workers=0, projector=False) as system, ExitStack() as stack:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        load = Load(sessions, messages)
        way = _Way(stack, system)
        way.go(load.take(len(sessions)))
        for size, rounds in ((1, run.size(300, 5)), (len(sessions), run.size(40, 2))):
            way.laps.clear()
            for _ in range(rounds):
                way.go(load.take(size))
            figures += [
                figure(f"batch of {size}: {name}", "µs", [[lap / size for lap in laps]])
                for name, laps in way.laps.items()
            ]
    return figures


class _Way:
    """Client, worker and projector in one thread, with a clock that is read between all steps."""

    def __init__(self, stack: ExitStack, system: Deployment) -> None:
        self._client = system.client
        self._store = system.store
        self._note_bytes = system.settings.max_note_bytes
        partitions = system.topology.all_partitions()
        table = LeaseTable(system.redis, _WORKER, system.topology, _LEASE_S)
        table.heartbeat(1, ())
        assert len(table.seize({partition.number: None for partition in partitions})) == len(partitions)
        self._fences = system.store.acquire_fences(partitions, _WORKER)
        self._sequences = {partition: fence.sequence for partition, fence in self._fences.items()}
        self._queue = ClaimQueue(system.redis, _WORKER, system.settings)
        logs = SessionLogs(Path(system.settings.sessions))
        self._barrier = stack.enter_context(LogBarrier(logs, system.settings.io_threads))
        self._topology = system.topology
        redis = stack.enter_context(closing(connect(system.settings.redis_url)))
        self._follower = Follower(redis, system.store)
        self._follower.step(1)
        self.laps: dict[str, list[float]] = {}
        self._since = 0

    def go(self, puts: Sequence[Put]) -> None:
        """One batch, from the client's call to the cached lists."""
        self._since = time.perf_counter_ns()
        self._client.submit_many(puts)
        self._lap("enqueue")
        ready = dict.fromkeys((self._topology.partition_of(put.session_id) for put in puts), 0)
        batches = self._queue.claim(ready, len(puts))
        self._lap("claim (decoding in it)")
        claims = [claim for batch in batches.values() if batch for claim in batch.claims if isinstance(claim, Claim)]
        assert len(claims) == len(puts)
        data = [wire.encode_job(claim.command) for claim in claims]
        self._since = time.perf_counter_ns()
        for job in data:
            digest_of(wire.decode_job(job))
        self._lap("decode, by itself")
        barriers = self._barrier.check({claim.command.session_id: Need(durable=True) for claim in claims})
        self._lap("barrier, logs unchanged")
        pending = [
            Pending(
                command=claim.command,
                digest=claim.digest,
                partition=claim.partition,
                epoch=self._fences[claim.partition].epoch,
                barrier=barriers[claim.command.session_id],
                version=str(uuid4()),
            )
            for claim in claims
        ]
        decisions = self._commit(pending, {claim.partition: self._fences[claim.partition].epoch for claim in claims})
        outcomes = [outcome for outcome in decisions.outcomes if isinstance(outcome, Answered)]
        self._queue.finish(list(zip(claims, outcomes, strict=True)))
        self._lap("finish")
        self._follower.step(1)
        self._lap("project")

    def _commit(self, pending: Sequence[Pending], epochs: dict[PartitionId, int]) -> Decisions:
        self._since = time.perf_counter_ns()
        with self._store.transaction(epochs) as transaction:
            snapshot = transaction.load(
                [one.command.command_id for one in pending],
                [(one.command.session_id, one.command.message_id) for one in pending],
            )
            self._lap("begin, check the fence, load")
            decisions = decide_batch(
                snapshot,
                pending,
                self._sequences,
                now_ms=wall_clock_ms(),
                max_note_bytes=self._note_bytes,
                retention_ms=10**12,
            )
            self._lap("decide")
            transaction.apply(decisions.changes, decisions.records, decisions.deadlines)
            self._lap("apply")
        self._lap("commit (one sync)")
        self._sequences |= {record.partition: record.sequence for record in decisions.records}
        return decisions

    def _lap(self, name: str) -> None:
        now = time.perf_counter_ns()
        self.laps.setdefault(name, []).append((now - self._since) / 1000)
        self._since = time.perf_counter_ns()
