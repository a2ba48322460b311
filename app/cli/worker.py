"""`feedback worker`."""

import threading
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from feedback import tracing
from feedback.settings import Settings
from worker.meter import Meter
from worker.process import run_worker


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_serving(parser)


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, _measured)


def _measured(settings: Settings, stop: threading.Event) -> None:
    with ExitStack() as measuring:
        meter = Meter()
        if settings.metrics_port:
            from app.metrics.exposing import exposed  # noqa: PLC0415  spared where nobody measures
            from worker.metrics import WorkerMetrics  # noqa: PLC0415

            exposition = measuring.enter_context(exposed(settings, "worker"))
            meter = WorkerMetrics(exposition.registry, exposition.vitals)
        if tracing.is_on():
            from worker.spans import TracedWork  # noqa: PLC0415

            meter = TracedWork(meter)
        run_worker(settings, stop, meter=meter)
