"""A gateway's metrics for Prometheus (docs/observability.md has them all). Loaded only where they are exposed."""

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedback.vitals import Vitals
from gateway.meter import Meter

_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class GatewayMetrics(Meter):
    """Registers its metrics with `registry`, and tells `vitals` that the event loop turns. No label has a path."""

    def __init__(self, registry: CollectorRegistry, vitals: Vitals) -> None:
        self._vitals = vitals
        self._requests = Counter(
            "feedback_gateway_requests", "Requests by method and status.", ("method", "status"), registry=registry
        )
        self._duration = Histogram(
            "feedback_gateway_request_duration_seconds",
            "Seconds until a request's answer began.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._open = Gauge(
            "feedback_gateway_open_requests", "Requests under way, streams of events among them.", registry=registry
        )

    def turn(self) -> None:
        self._vitals.turn("gateway")

    def count(self, method: str, status: int, seconds: float) -> None:
        """A request's answer began, so many seconds after the request came."""
        self._duration.observe(seconds)
        self._requests.labels(method if method in _METHODS else "other", status).inc()

    def measured(self, app: ASGIApp) -> ASGIApp:
        async def measuring(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = perf_counter()

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.count(scope["method"], message["status"], perf_counter() - began)
                await send(message)

            with self._open.track_inprogress():
                await app(scope, receive, noting)

        return measuring
