"""`feedback agent`."""

import threading
from argparse import ArgumentParser, Namespace

from app.cli.options import add_common, add_settings, client_settings
from app.cli.serving import serve
from app.exits import ExitCode
from barrier.process import run_agent
from feedback.settings import Settings

_SETTINGS = (
    "redis_url",
    "sessions",
    "host",
    "flush_timeout",
    "lease_ttl",
    "shutdown_grace",
    "io_threads",
    "index_bytes",
    "metrics_port",
    "metrics_host",
)


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, *_SETTINGS)
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, _measured, settings_from=client_settings)


def _measured(settings: Settings, stop: threading.Event) -> None:
    if not settings.metrics_port:
        run_agent(settings, stop)
        return
    from app.metrics.exposing import exposed  # noqa: PLC0415  spared where nobody measures
    from barrier.metrics import AgentMetrics  # noqa: PLC0415

    with exposed(settings, "agent", has_store=False) as exposition:
        run_agent(settings, stop, meter=AgentMetrics(exposition.registry, exposition.vitals))
