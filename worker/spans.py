"""A worker's spans: one for each batch that has traced commands, with its steps, and one for each of those commands.

A batch's span is a trace of its own that links the commands' contexts; a command's span continues the trace of whoever
sent it, and links the batch's. Both are made when the batch is acknowledged, from times that were noted meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from barrier.rules import Barrier, DurabilityBarrier, Need
from feedback import tracing
from feedback.errors import FeedbackError
from feedback.partitions import PartitionId
from persistence.sidecar.store import StoreTransaction
from worker.claims import Claim, Claimed, Ending, Failed
from worker.meter import Held, Meter, Transactions
from worker.outcomes import outcome_of

_MOST_LINKS = 128
"""What an SDK keeps of a span's links by default."""
_NAME = f"process {tracing.DESTINATION}"
_ATTRIBUTES = {
    "messaging.system": tracing.SYSTEM,
    "messaging.destination.name": tracing.DESTINATION,
    "messaging.operation.type": "process",
    "messaging.operation.name": "process",
}


class _Step(NamedTuple):
    """One step of a batch; times in nanoseconds since the epoch, as OpenTelemetry counts."""

    name: str
    began: int
    ended: int


class _Traced(NamedTuple):
    """A command that carries a context, and what it came to."""

    command_id: str
    context: Context
    ending: Ending


class _Batch(NamedTuple):
    """A batch that is committed and not acknowledged."""

    claims: frozenset[int]
    steps: tuple[_Step, ...]
    commands: int
    traced: Sequence[_Traced]


class TracedWork(Meter):
    """Makes spans, and tells another meter everything. For one worker's loop."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self._tracer = tracing.tracer()
        self._steps: list[_Step] = []
        self._pending: deque[_Batch] = deque()

    def turn(self) -> None:
        self._inner.turn()

    def serves(self, held: Held) -> None:
        self._inner.serves(held)

    def looked_after(self) -> None:
        self._inner.looked_after()

    def fenced(self) -> None:
        self._steps.clear()
        self._inner.fenced()

    def interrupted(self, error: Exception) -> None:
        # What was committed is acknowledged by whoever claims it anew, who answers from the record.
        self._steps.clear()
        self._pending.clear()
        self._inner.interrupted(error)

    def processed(
        self, ended: Sequence[tuple[Claimed, Ending]], deferred: Sequence[tuple[Claim, FeedbackError]]
    ) -> None:
        self._inner.processed(ended, deferred)
        steps, self._steps = tuple(self._steps), []
        traced = tuple(_traced(ended))
        if traced and steps:
            claims = frozenset(id(claim) for claim, _ in ended)
            self._pending.append(_Batch(claims, steps, len(ended) + len(deferred), traced))

    def acknowledged(self, claims: Sequence[Claimed]) -> None:
        self._inner.acknowledged(claims)
        if not self._pending:
            return
        done = set(map(id, claims))
        now = time.time_ns()
        for batch in tuple(self._pending):
            if batch.claims <= done:
                self._pending.remove(batch)
                self._tell(batch, now)

    def timed_barrier(self, barrier: DurabilityBarrier) -> DurabilityBarrier:
        return _NotedBarrier(self._inner.timed_barrier(barrier), self._noted)

    def timed_commits(self, store: Transactions) -> Transactions:
        return _NotedCommits(self._inner.timed_commits(store), self._noted)

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        began = time.time_ns()
        try:
            yield
        finally:
            self._steps.append(_Step(name, began, time.time_ns()))

    def _tell(self, batch: _Batch, now: int) -> None:
        began = batch.steps[0].began
        links = [Link(_span_context(one.context)) for one in batch.traced[:_MOST_LINKS]]
        attributes: dict[str, str | int] = {**_ATTRIBUTES, "messaging.batch.message_count": batch.commands}
        whole = self._tracer.start_span(_NAME, Context(), SpanKind.CONSUMER, attributes, links, start_time=began)
        inside = trace.set_span_in_context(whole)
        for step in (*batch.steps, _Step("acknowledge", batch.steps[-1].ended, now)):
            self._tracer.start_span(step.name, inside, start_time=step.began).end(step.ended)
        whole.end(now)
        for one in batch.traced:
            self._tell_of(one, whole.get_span_context(), began, now)

    def _tell_of(self, one: _Traced, batch: SpanContext, began: int, now: int) -> None:
        attributes = {
            **_ATTRIBUTES,
            "messaging.message.id": one.command_id,
            "feedback.outcome": outcome_of(one.ending),
        }
        span = self._tracer.start_span(_NAME, one.context, SpanKind.CONSUMER, attributes, [Link(batch)], began)
        if isinstance(one.ending, Failed):
            span.set_attribute("error.type", one.ending.failure.code)
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)


class _NotedBarrier:
    """A barrier whose times are noted."""

    def __init__(self, barrier: DurabilityBarrier, noted: Callable[[str], AbstractContextManager[None]]) -> None:
        self._barrier = barrier
        self._noted = noted

    def check(self, needs: Mapping[str, Need]) -> Mapping[str, Barrier]:
        with self._noted("barrier"):
            return self._barrier.check(needs)


class _NotedCommits:
    """A store whose transactions' times are noted."""

    def __init__(self, store: Transactions, noted: Callable[[str], AbstractContextManager[None]]) -> None:
        self._store = store
        self._noted = noted

    def transaction(self, epochs: Mapping[PartitionId, int]) -> AbstractContextManager[StoreTransaction]:
        return self._transaction(epochs)

    @contextmanager
    def _transaction(self, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        with self._noted("commit"), self._store.transaction(epochs) as transaction:
            yield transaction


def _traced(ended: Iterable[tuple[Claimed, Ending]]) -> Iterator[_Traced]:
    """The commands that carry a context."""
    for claim, ending in ended:
        if isinstance(claim, Claim) and (context := tracing.context_of(claim.command.traceparent)) is not None:
            yield _Traced(claim.command.command_id, context, ending)


def _span_context(context: Context) -> SpanContext:
    return trace.get_current_span(context).get_span_context()
