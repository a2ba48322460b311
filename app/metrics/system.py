"""What a projector's scrape reads off Redis and the store: queues, owners, the projection's lag, troubles.

Computed when it is asked for, so that it is right when no worker lives. Each projector tells of the whole system: where
two run, take the maximum, not the sum (docs/observability.md).
"""

import logging
from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from app.inspection import Ownership, read_ownership
from app.metrics.reach import Reach
from feedback.calls import wall_clock_ms
from feedback.errors import FeedbackError
from feedback.failures import KNOWN_CODES, OTHER_CODE, known_code
from feedback.partitions import Topology
from feedback.troubles import read_troubles
from projections.lag import lag
from projections.waiting import read_backlog

_log = logging.getLogger(__name__)


class SystemCollector(Collector):
    """Reads the system's state once a scrape, in a handful of round trips whatever waits in the queues.

    What cannot be read is left out of that scrape, and `feedback_system_readable` says so.
    """

    def __init__(self, registry: CollectorRegistry, reach: Reach) -> None:
        self._reach = reach
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing is read to register it."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        readable = _gauge("feedback_system_readable", "Whether server and store could be read for this scrape.", "part")
        found: list[Metric] = [readable]
        part = "server"
        try:
            ownership = read_ownership(self._reach.redis)
            found += self._of_server(ownership)
            readable.add_metric([part], 1)
            part = "store"
            found += self._of_store(ownership.topology)
            readable.add_metric([part], 1)
        except (RedisError, FeedbackError) as error:
            _log.warning("not scraped part=%s reason=%s", part, error)
            readable.add_metric([part], 0)
        return iter(found)

    def _of_server(self, ownership: Ownership) -> list[Metric]:
        alive = _gauge("feedback_workers_alive", "Workers whose lease session stands.")
        alive.add_metric([], len(ownership.workers))
        codes = Tally(known_code(trouble.code) for trouble in read_troubles(self._reach.redis).values())
        troubles = _gauge("feedback_troubles", "Processes kept from their work, by the failure's name.", "code")
        for code in (*KNOWN_CODES, OTHER_CODE):
            troubles.add_metric([code], codes[code])
        return [alive, troubles, *self._of_queues(ownership)]

    def _of_queues(self, ownership: Ownership) -> list[Metric]:
        topology = ownership.topology
        if topology is None:
            return []
        partitions = _gauge("feedback_partitions", "Partitions, by whether a live worker owns them.", "owned")
        unowned = sum(owner is None for owner in ownership.owners.values())
        partitions.add_metric(["yes"], topology.partitions - unowned)
        partitions.add_metric(["no"], unowned)
        backlog = read_backlog(self._reach.redis, topology.all_partitions()).values()
        commands = _gauge("feedback_queue_commands", "Commands in all partitions, by where they are.", "state")
        commands.add_metric(["waiting"], sum(one.waiting for one in backlog))
        commands.add_metric(["claimed"], sum(one.claimed for one in backlog))
        commands.add_metric(["failed"], sum(one.failed for one in backlog))
        age = _gauge(
            "feedback_queue_oldest_command_age_seconds", "Age of the oldest command that waits or is claimed; 0: none."
        )
        oldest = min((one.oldest for one in backlog if one.oldest is not None), default=None)
        age.add_metric([], 0 if oldest is None else max(0, wall_clock_ms() - oldest) / 1000)
        return [partitions, commands, age]

    def _of_store(self, topology: Topology | None) -> list[Metric]:
        if topology is None:
            return []
        behind = _gauge("feedback_projection_lag_outcomes", "Outcomes that are committed, and not in the lists yet.")
        with self._reach.store() as store:
            behind.add_metric([], sum(max(0, one) for one in lag(self._reach.redis, store, topology).values()))
        return [behind]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)
