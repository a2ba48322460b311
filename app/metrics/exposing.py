"""One serving process's metrics and health, put together: `/metrics`, `/healthz`, `/readyz`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from importlib.metadata import version

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder

from app.metrics.reach import Reach
from app.metrics.server import Page, PageServer
from app.metrics.system import SystemCollector
from feedback.settings import Settings
from feedback.vitals import Vitals

ALIVE_WITHIN_S = 30.0
"""Seconds without a turn of a process's loop, after which it counts as hung: six times the longest it waits for
anything (a log that is slow to read, another's lock of the store)."""

_TURN_WITHIN_S = 1.0


class Exposition:
    """What a process registers its metrics with, and tells that it lives."""

    def __init__(self, settings: Settings, process: str, *, has_store: bool, has_system: bool = False) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own
        self.registry = CollectorRegistry()
        self.vitals = Vitals()
        self.port = 0
        """Where it is served, as soon as it is."""
        self._reach = Reach(settings, has_store=has_store)
        # One scrape or probe at a time: the server and the store see one of them. Those that come meanwhile wait a
        # little: while a store is silent they must not take the room that `healthz` is answered in.
        self._turn = threading.Lock()
        ProcessCollector(registry=self.registry)
        info = Gauge(
            "feedback_build_info", "1; what runs here, by its labels.", ("process", "version"), registry=self.registry
        )
        info.labels(process, version("session-feedback")).set(1)
        if has_system:
            SystemCollector(self.registry, self._reach)

    def metrics(self, accept: str) -> Page:
        """Everything that is registered, in the form that the scraper likes best."""
        encode, content_type = choose_encoder(accept)
        return self._in_turn(lambda: Page(encode(self.registry), content_type))

    def healthz(self, accept: str) -> Page:
        """Whether the process does its rounds. One that does not is to be killed and started anew."""
        del accept
        return _verdict([f"{loop} stands still" for loop in self.vitals.standing_still(ALIVE_WITHIN_S)])

    def readyz(self, accept: str) -> Page:
        """Whether it reaches what it works with. One that does not waits, and goes on by itself."""
        del accept
        return self._in_turn(lambda: _verdict(self._reach.missing()))

    def _in_turn(self, look: Callable[[], Page]) -> Page:
        if not self._turn.acquire(timeout=_TURN_WITHIN_S):
            return _verdict(["an earlier look at the server and the store takes long"])
        try:
            return look()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close its connections."""
        with self._turn:
            self._reach.close()


@contextmanager
def exposed(
    settings: Settings, process: str, *, has_store: bool = True, has_system: bool = False
) -> Iterator[Exposition]:
    """Serve a process's metrics and health while it runs.

    Raises:
        SettingsInvalid: `metrics_port` cannot be had.
    """
    with closing(Exposition(settings, process, has_store=has_store, has_system=has_system)) as exposition:
        pages = {"/metrics": exposition.metrics, "/healthz": exposition.healthz, "/readyz": exposition.readyz}
        with PageServer(settings.metrics_host, settings.metrics_port, pages) as server:
            exposition.port = server.port
            yield exposition


def _verdict(reasons: list[str]) -> Page:
    if not reasons:
        return Page(b"ok\n")
    return Page("".join(f"{reason}\n" for reason in reasons).encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
