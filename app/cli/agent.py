"""`feedback agent`."""

from argparse import ArgumentParser, Namespace

from app.cli.options import add_common, add_settings, client_settings
from app.cli.serving import serve
from app.exits import ExitCode
from barrier.process import run_agent

_SETTINGS = (
    "redis_url",
    "sessions",
    "host",
    "flush_timeout",
    "lease_ttl",
    "shutdown_grace",
    "io_threads",
    "index_bytes",
)


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, *_SETTINGS)
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, run_agent, settings_from=client_settings)
