"""A projector's metrics for Prometheus (docs/observability.md has them all). Loaded only where they are exposed."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from feedback.dropped import Reason
from feedback.events import Event
from feedback.vitals import Vitals
from projections.meter import Meter


class ProjectorMetrics(Meter):
    """Registers its metrics with `registry`, and tells `vitals` of each turn of its loops."""

    def __init__(self, registry: CollectorRegistry, vitals: Vitals) -> None:
        self._vitals = vitals

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"feedback_projector_{name}", text, labels, registry=registry)

        self._follows = Gauge(
            "feedback_projector_following",
            "Whether this projector follows the events; 0: a standby.",
            registry=registry,
        )
        self._outcomes = counter("outcomes", "Outcomes of commands that were taken into the cached lists.")
        self._rebuilds = counter("rebuilds", "Times that all cached lists were to be made anew.")
        self._queries = counter("queries", "Queries that were taken to be answered.")
        self._dropped = counter("dropped", "Queries that were not answered, by why.", "reason")
        for reason in (Reason.OVERDUE, Reason.MALFORMED):
            self._dropped.labels(reason)
        lookups = counter("list_lookups", "Lists looked up for answers, by where they were found.", "source")
        self._memory, self._cache, self._store = (lookups.labels(source) for source in ("memory", "cache", "store"))

    def turn(self, loop: str) -> None:
        self._vitals.turn(loop)

    def follows(self, does: bool) -> None:
        self._follows.set(does)

    def projected(self, outcomes: int, events: Iterable[Event] = ()) -> None:
        del events
        self._outcomes.inc(outcomes)

    def began_anew(self) -> None:
        self._rebuilds.inc()

    def took(self, queries: int) -> None:
        self._queries.inc(queries)

    def dropped(self, reason: str, count: int) -> None:
        self._dropped.labels(reason).inc(count)

    def looked_up(self, *, memory: int = 0, cache: int = 0, store: int = 0) -> None:
        self._memory.inc(memory)
        self._cache.inc(cache)
        self._store.inc(store)
