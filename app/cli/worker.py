"""`feedback worker`."""

import threading
from argparse import ArgumentParser, Namespace

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from feedback.settings import Settings
from worker.process import run_worker


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_serving(parser)


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, _measured)


def _measured(settings: Settings, stop: threading.Event) -> None:
    if not settings.metrics_port:
        run_worker(settings, stop)
        return
    from app.metrics.exposing import exposed  # noqa: PLC0415  spared where nobody measures
    from worker.metrics import WorkerMetrics  # noqa: PLC0415

    with exposed(settings, "worker") as exposition:
        run_worker(settings, stop, meter=WorkerMetrics(exposition.registry, exposition.vitals))
