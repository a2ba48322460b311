"""`feedback projector`."""

import threading
from argparse import ArgumentParser, Namespace

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from feedback.settings import Settings
from projections.process import run_projector


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_serving(parser)


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, _measured)


def _measured(settings: Settings, stop: threading.Event) -> None:
    if not settings.metrics_port:
        run_projector(settings, stop)
        return
    from app.metrics.exposing import exposed  # noqa: PLC0415  spared where nobody measures
    from projections.metrics import ProjectorMetrics  # noqa: PLC0415

    with exposed(settings, "projector", has_system=True) as exposition:
        run_projector(settings, stop, meter=ProjectorMetrics(exposition.registry, exposition.vitals))
