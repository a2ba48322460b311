"""A worker's metrics for Prometheus (docs/observability.md has them all). Loaded only where they are exposed.

No label bears an id, and none a rating: labels are outcomes, and the names of failures that this program knows.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from redis.exceptions import RedisError

from barrier.rules import DurabilityBarrier, FlushNeeded
from barrier.timing import SECONDS, TimedBarrier
from feedback.errors import FeedbackError
from feedback.failures import KNOWN_CODES, known_code
from feedback.partitions import PartitionId
from feedback.vitals import Vitals
from persistence.sidecar.store import StoreTransaction
from worker.claims import Claim, Claimed, Ending, Failed
from worker.meter import Held, Meter, Transactions
from worker.outcomes import OUTCOMES, outcome_of
from worker.remote import EvidenceNeeded, OutOfTurn

_COMMANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class WorkerMetrics(Meter):
    """Registers its metrics with `registry`, and tells `vitals` of each turn of the loop."""

    def __init__(self, registry: CollectorRegistry, vitals: Vitals) -> None:
        self._vitals = vitals
        self._held: Held | None = None
        self._owned: dict[PartitionId, object] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"feedback_worker_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"feedback_worker_{name}_seconds", text, buckets=SECONDS, registry=registry)

        self._commands = counter("commands", "Commands that came to an end, by what became of them.", "outcome")
        self._dead_letters = counter("dead_letters", "Commands that failed for good, by the failure's name.", "code")
        self._retries = counter("retries", "Tries of a Session's commands that were put off, by why.", "code")
        self._questions = counter("questions", "Sessions whose owner or agent had to be asked first.", "asked")
        self._fenced = counter("fenced", "Batches that were fenced off: another worker owned a partition.")
        self._acquired = counter("partitions_acquired", "Partitions taken over.")
        self._given_up = counter("partitions_given_up", "Partitions released, lost, or dropped after a failure.")
        self._interruptions = counter("interruptions", "Times that all work stopped, by what was in the way.", "cause")
        self._batch = Histogram(
            "feedback_worker_batch_commands", "Commands tried in one batch.", buckets=_COMMANDS, registry=registry
        )
        self._barrier = seconds("barrier_duration", "Seconds that one batch's barrier took.")
        self._commit = seconds("commit_duration", "Seconds that one batch's store transaction took.")
        self._gauges(registry)
        for known in OUTCOMES:
            self._commands.labels(known)
        for code in KNOWN_CODES:
            self._dead_letters.labels(code)

    def _gauges(self, registry: CollectorRegistry) -> None:
        """What is read off the worker when somebody asks."""

        def gauge(name: str, text: str, value: Callable[[Held], int]) -> None:
            made = Gauge(f"feedback_worker_{name}", text, registry=registry)
            made.set_function(lambda: 0 if self._held is None else value(self._held))

        gauge("owned_partitions", "Partitions that this worker owns.", lambda held: len(held.owned))
        gauge(
            "parked_sessions",
            "Sessions whose commands wait for another try, their owner or their agent.",
            lambda held: sum(lot.sessions for lot in tuple(held.parking.values())),
        )
        gauge(
            "parked_commands",
            "Commands of parked Sessions that this worker holds.",
            lambda held: sum(map(len, tuple(held.parking.values()))),
        )

    def turn(self) -> None:
        self._vitals.turn("worker")

    def serves(self, held: Held) -> None:
        self._held = held

    def looked_after(self) -> None:
        held = dict(self._held.owned) if self._held is not None else {}
        self._acquired.inc(sum(self._owned.get(partition) is not one for partition, one in held.items()))
        self._given_up.inc(sum(held.get(partition) is not one for partition, one in self._owned.items()))
        self._owned = held

    def processed(
        self, ended: Sequence[tuple[Claimed, Ending]], deferred: Sequence[tuple[Claim, FeedbackError]]
    ) -> None:
        self._batch.observe(len({id(claim) for claim, _ in (*ended, *deferred)}))
        for outcome, number in Tally(outcome_of(ending) for _, ending in ended).items():
            self._commands.labels(outcome).inc(number)
        for _, ending in ended:
            if isinstance(ending, Failed):
                self._dead_letters.labels(known_code(ending.failure.code)).inc()
        # Of a Session that waits, each command is deferred for the same reason: it is one try.
        for error in {claim.command.session_id: error for claim, error in reversed(deferred)}.values():
            self._put_off(error)

    def _put_off(self, error: FeedbackError) -> None:
        if isinstance(error, FlushNeeded):
            self._questions.labels("owner").inc()
        elif isinstance(error, EvidenceNeeded):
            self._questions.labels("agent").inc()
        elif not isinstance(error, OutOfTurn):
            self._retries.labels(known_code(error.code)).inc()

    def fenced(self) -> None:
        self._fenced.inc()

    def interrupted(self, error: Exception) -> None:
        self._interruptions.labels("server" if isinstance(error, RedisError) else "store").inc()

    def timed_barrier(self, barrier: DurabilityBarrier) -> DurabilityBarrier:
        return TimedBarrier(barrier, self._looked)

    def _looked(self, seconds: float, sessions: int) -> None:
        del sessions
        self._barrier.observe(seconds)

    def timed_commits(self, store: Transactions) -> Transactions:
        return _TimedCommits(store, self._commit.observe)


class _TimedCommits:
    """A store that says how many seconds each transaction took, from its beginning to the commit or its failure."""

    def __init__(self, store: Transactions, took: Callable[[float], None]) -> None:
        self._store = store
        self._took = took

    def transaction(self, epochs: Mapping[PartitionId, int]) -> AbstractContextManager[StoreTransaction]:
        return self._timed(epochs)

    @contextmanager
    def _timed(self, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        began = time.perf_counter()
        try:
            with self._store.transaction(epochs) as transaction:
                yield transaction
        finally:
            self._took(time.perf_counter() - began)
