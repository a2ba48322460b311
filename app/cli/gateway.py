"""`feedback gateway`: the contract over HTTP, for browsers and whoever else speaks it."""

import logging
import threading
from argparse import ArgumentParser, Namespace

from app.cli.options import SETTING_HELP, add_common, add_settings
from app.cli.output import console, write_json
from app.cli.serving import serve
from app.exits import ExitCode
from feedback.errors import SettingsInvalid
from feedback.settings import Settings

_PREFIX = "gateway_"
_SHARED = ("redis_url", "sidecar_url", "sessions", "max_note_bytes", "shutdown_grace", "metrics_port", "metrics_host")

_log = logging.getLogger(__name__)


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    for name in Settings.__struct_fields__:
        if name.startswith(_PREFIX):
            flag = name.removeprefix(_PREFIX).replace("_", "-")
            parser.add_argument(f"--{flag}", dest=name, metavar="VALUE", help=SETTING_HELP[name])
    add_common(parser)
    add_settings(parser, *_SHARED)
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def run(arguments: Namespace) -> ExitCode:
    try:
        from gateway.server import run_gateway  # noqa: PLC0415  an extra, which no other command needs
    except ModuleNotFoundError as error:
        reason = f"`feedback gateway` needs {error.name}: pip install 'session-feedback[gateway]'"
        raise SettingsInvalid(reason) from None

    def announce(url: str) -> None:
        _log.info("listening url=%s", url)
        if arguments.json:
            write_json({"url": url})
        else:
            console().print(f"listening on {url}")

    def process(settings: Settings, stop: threading.Event) -> None:
        if not settings.metrics_port:
            run_gateway(settings, stop, announce)
            return
        from app.metrics.exposing import exposed  # noqa: PLC0415  spared where nobody measures
        from gateway.metrics import GatewayMetrics  # noqa: PLC0415

        with exposed(settings, "gateway", has_store=False) as exposition:
            run_gateway(settings, stop, announce, meter=GatewayMetrics(exposition.registry, exposition.vitals))

    return serve(arguments, process)
