"""`feedback projector`."""

import threading
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from feedback import tracing
from feedback.settings import Settings
from projections.meter import Meter
from projections.process import run_projector


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
            from projections.metrics import ProjectorMetrics  # noqa: PLC0415

            exposition = measuring.enter_context(exposed(settings, "projector", has_system=True))
            meter = ProjectorMetrics(exposition.registry, exposition.vitals)
        if tracing.is_on():
            from projections.spans import TracedProjection  # noqa: PLC0415

            meter = TracedProjection(meter)
        run_projector(settings, stop, meter=meter)
