"""A projector's spans: one for each traced outcome that is in the lists now, from its commit on (that is the lag)."""

import time
from collections.abc import Iterable

from opentelemetry.trace import SpanKind

from feedback import tracing
from feedback.events import Event
from projections.meter import Meter

_NAME = f"project {tracing.DESTINATION}"


class TracedProjection(Meter):
    """Makes spans, and tells another meter everything."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self._tracer = tracing.tracer()

    def turn(self, loop: str) -> None:
        self._inner.turn(loop)

    def follows(self, does: bool) -> None:
        self._inner.follows(does)

    def began_anew(self) -> None:
        self._inner.began_anew()

    def took(self, queries: int) -> None:
        self._inner.took(queries)

    def dropped(self, reason: str, count: int) -> None:
        self._inner.dropped(reason, count)

    def looked_up(self, *, memory: int = 0, cache: int = 0, store: int = 0) -> None:
        self._inner.looked_up(memory=memory, cache=cache, store=store)

    def projected(self, outcomes: int, events: Iterable[Event] = ()) -> None:
        self._inner.projected(outcomes, events)
        now = time.time_ns()
        for event in events:
            if (context := tracing.context_of(event.traceparent)) is not None:
                attributes = {
                    "messaging.system": tracing.SYSTEM,
                    "messaging.destination.name": tracing.DESTINATION,
                    "messaging.operation.type": "process",
                    "messaging.operation.name": "project",
                    "messaging.message.id": event.command_id,
                }
                # The worker's clock may be ahead of this one.
                began = min(now, 1_000_000 * event.occurred_at)
                self._tracer.start_span(_NAME, context, SpanKind.CONSUMER, attributes, start_time=began).end(now)
