"""An agent's metrics for Prometheus (docs/observability.md has them all). Loaded only where they are exposed."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from barrier.meter import Meter
from barrier.rules import DurabilityBarrier
from barrier.timing import SECONDS, TimedBarrier
from feedback.dropped import Reason
from feedback.vitals import Vitals


class AgentMetrics(Meter):
    """Registers its metrics with `registry`, and tells `vitals` of each turn of the loop."""

    def __init__(self, registry: CollectorRegistry, vitals: Vitals) -> None:
        self._vitals = vitals
        self._serving = Gauge(
            "feedback_agent_serving", "Whether this agent is its host's; 0: a standby.", registry=registry
        )
        self._sessions = Counter(
            "feedback_agent_sessions", "Sessions whose logs were looked at, each time.", registry=registry
        )
        self._interruptions = Counter(
            "feedback_agent_interruptions", "Times that the server was in the way of all work.", registry=registry
        )
        self._dropped = Counter(
            "feedback_agent_dropped",
            "Requests, or questions of one, that were not answered, by why.",
            ("reason",),
            registry=registry,
        )
        for reason in Reason:
            self._dropped.labels(reason)
        self._barrier = Histogram(
            "feedback_agent_barrier_duration_seconds",
            "Seconds that the barrier took for one look.",
            buckets=SECONDS,
            registry=registry,
        )

    def turn(self, *, serves: bool) -> None:
        self._vitals.turn("agent")
        self._serving.set(serves)

    def interrupted(self) -> None:
        self._interruptions.inc()

    def dropped(self, reason: str, count: int) -> None:
        self._dropped.labels(reason).inc(count)

    def timed_barrier(self, barrier: DurabilityBarrier) -> DurabilityBarrier:
        return TimedBarrier(barrier, self._looked)

    def _looked(self, seconds: float, sessions: int) -> None:
        self._barrier.observe(seconds)
        self._sessions.inc(sessions)
