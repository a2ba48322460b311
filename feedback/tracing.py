"""Traces across processes: the W3C context that rides in a command and its event (docs/observability.md).

OpenTelemetry is optional, and never loaded here: where a process uses it, it is loaded already. A host sets its own SDK
up; this system's processes do by `OTEL_*` variables (`app.tracing`). Where nobody has, all of this does nothing.

Spans name operations, outcomes and command ids. No rating, no note, no Session, message or actor: those are people's
(CONTRACT, "Lifecycle identity"), and the command id leads whoever has the rights to them (`feedback dlq`, `audit`).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

SYSTEM = "session-feedback"
"""`messaging.system`: none of the names that the conventions list."""
DESTINATION = "feedback"
"""`messaging.destination.name`: all partitions are one to whoever sends."""

_API = "opentelemetry.trace"
_HEADER = "traceparent"


def is_on() -> bool:
    """Whether somebody has set OpenTelemetry up in this process: redis-py loads it where it is installed, and that is
    not enough."""
    if _API not in sys.modules:
        return False
    from opentelemetry import trace  # noqa: PLC0415  optional, and loaded already

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def tracer() -> "Tracer":
    """The tracer of this system's spans. Only where `is_on`."""
    from opentelemetry import trace  # noqa: PLC0415  optional, and loaded already

    return trace.get_tracer(SYSTEM)


def context_of(traceparent: str | None) -> "Context | None":
    """The context that a command or event carries, None when it has none that can be read. Only where `is_on`."""
    if traceparent is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415  optional, and loaded already
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    context = TraceContextTextMapPropagator().extract({_HEADER: traceparent}, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


@contextmanager
def continuing(traceparent: str | None) -> Iterator[None]:
    """Have what the block sends continue a caller's trace, unless one is going on here already."""
    context = context_of(traceparent) if is_on() else None
    if context is None:
        yield
        return
    from opentelemetry import context as contexts  # noqa: PLC0415  optional, and loaded already
    from opentelemetry import trace  # noqa: PLC0415

    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


@contextmanager
def sending(commands: int) -> Iterator[str | None]:
    """A span around sending so many commands; the `traceparent` that they are to carry, None when there is no trace.

    Its parent is what is current where the call begins. It is made current for nobody: a flow is suspended in between.
    """
    if not is_on():
        yield None
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": DESTINATION,
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.batch.message_count": commands,
    }
    span = tracer().start_span(f"send {DESTINATION}", kind=SpanKind.PRODUCER, attributes=attributes)
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    try:
        yield carrier.get(_HEADER)
    except Exception as error:
        # Its name alone: its sentence may quote what is not to be told here.
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        raise
    finally:
        span.end()
