"""A system whose processes are measured, as threads of the test's process, and scraped over HTTP."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from app.metrics.exposing import Exposition, exposed
from barrier.metrics import AgentMetrics
from barrier.process import run_agent
from feedback.settings import Settings
from projections.metrics import ProjectorMetrics
from projections.process import run_projector
from tests.harness import Placed
from worker.metrics import WorkerMetrics
from worker.process import run_worker


class Measured(NamedTuple):
    """What each process exposes."""

    worker: Exposition
    projector: Exposition
    agent: Exposition | None


@contextmanager
def projecting(settings: Settings) -> Iterator[Exposition]:
    """A projector alone."""
    stop = Event()
    with exposed(settings, "projector", has_system=True) as projector, ThreadPoolExecutor(1) as threads:
        meter = ProjectorMetrics(projector.registry, projector.vitals)
        running = threads.submit(run_projector, settings, stop, meter=meter)
        try:
            yield projector
        finally:
            stop.set()
        running.result()


@contextmanager
def working(placed: Placed) -> Iterator[Measured]:
    """Worker and projector, and the agent of the first host, if there is one."""
    stop = Event()
    with ExitStack() as opened:
        projector = opened.enter_context(projecting(placed.settings))
        worker = opened.enter_context(exposed(placed.settings, "worker"))
        threads = opened.enter_context(ThreadPoolExecutor(2))
        opened.callback(stop.set)
        meter = WorkerMetrics(worker.registry, worker.vitals)
        running = [threads.submit(run_worker, placed.settings, stop, meter=meter)]
        agent = None
        for of_host in placed.agents[:1]:
            agent = opened.enter_context(exposed(of_host, "agent", has_store=False))
            eyes = AgentMetrics(agent.registry, agent.vitals)
            running.append(threads.submit(run_agent, of_host, stop, meter=eyes))
        yield Measured(worker, projector, agent)
        stop.set()
        for process in running:
            process.result()


class Scrape(NamedTuple):
    """What one process told, by sample name and labels, as Prometheus would store it."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one series."""
        return self.samples[name, tuple(sorted(labels.items()))]

    @property
    def names(self) -> set[str]:
        """The names of all series."""
        return {name for name, _ in self.samples}


def page(exposition: Exposition, path: str) -> tuple[int, str]:
    """A page's status and text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{exposition.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(exposition: Exposition) -> Scrape:
    """All samples now."""
    status, text = page(exposition, "/metrics")
    assert status == 200, text
    return Scrape(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )
