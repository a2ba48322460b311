"""`feedback up`: everything on one machine."""

import os
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from app.catalog import first_unrated, open_existing_store
from app.cli.options import add_common, add_settings, named_settings
from app.cli.output import console, write_json
from app.exits import ExitCode
from app.home import data_flag
from app.logs import setup_logging
from app.system import System, with_own_port
from app.up import UpPlan, plan_up, run_up
from feedback.settings import Settings
from gateway.access.tokens import TokenFile
from gateway.address import url_of
from persistence.session_log import SessionLogs
from persistence.sidecar import public_url


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser)
    parser.add_argument(
        "--gateway", dest="gateway_port", metavar="PORT", help="serve HTTP as well, on this port (0: any free one)"
    )
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def run(arguments: Namespace) -> ExitCode:
    setup_logging(json_lines=arguments.log_json or arguments.json)
    plan = plan_up(arguments.data, named_settings(arguments), os.environ, arguments.config)

    def announce(system: System) -> None:
        if arguments.json:
            write_json(_summary(plan, system))
        else:
            _greet(plan, system, arguments.data)

    run_up(plan, announce)
    if not arguments.json:
        console().print("stopped; all data is kept")
    return ExitCode.SUCCESS


def _summary(plan: UpPlan, system: System) -> dict[str, object]:
    settings = system.settings
    return {
        "data": str(plan.data),
        "redisUrl": settings.redis_url,
        "sidecarUrl": settings.sidecar_url,
        "sessions": settings.sessions,
        "maxNoteBytes": settings.max_note_bytes,
        **({"gatewayUrl": url_of(settings, settings.gateway_port)} if plan.gateway else {}),
        **({"metricsUrls": urls} if (urls := _metrics_urls(system)) else {}),
        "pids": {child.name: child.pid for child in system.children},
    }


def _greet(plan: UpPlan, system: System, data: Path) -> None:
    settings, out = system.settings, console()
    pids = ", ".join(f"{child.name} {child.pid}" for child in system.children)
    server = "embedded, AOF every second" if not plan.settings.redis_url else "yours"
    out.print("session-feedback is running. Ctrl-C stops it; the data stays.", style="bold green")
    out.print(f"  server     {_without_password(settings.redis_url)} ({server})")
    out.print(f"  store      {public_url(settings.sidecar_url)}")
    out.print(f"  Sessions   {settings.sessions}")
    if plan.gateway:
        out.print(f"  HTTP       {url_of(settings, settings.gateway_port)}{whom_it_lets_in(settings)}")
    for name, url in _metrics_urls(system).items():
        out.print(f"  metrics    {url} ({name})")
    out.print(f"  processes  {pids}; logs in {system.logs}")
    program, where = _program(), "" if data == Path("data") else f" {data_flag(data)}"
    out.print("Next, in another terminal:")
    out.print(f"  {program} sessions{where}")
    if example := _example(settings):
        session, message = map(shlex.quote, example)
        out.print(f'  {program} put {session} {message} positive --note "Clear and short"{where}')


def whom_it_lets_in(settings: Settings) -> str:
    """A remark for whoever has set up neither tokens nor an issuer: the gateway asks nobody then who it is."""
    if settings.gateway_issuer or TokenFile(Path(settings.gateway_tokens)).exists():
        return ""
    return " (no tokens, no issuer: everybody on this machine may rate)"


def _metrics_urls(system: System) -> dict[str, str]:
    """Where each of the system's processes serves its metrics: nowhere, unless a port is set."""
    host, port = system.settings.metrics_host, system.settings.metrics_port
    if not port:
        return {}
    address = f"[{host}]" if ":" in host else host
    ports = {name: with_own_port(system.settings, name).metrics_port for name in system.serving}
    return {name: f"http://{address}:{own}/metrics" for name, own in ports.items()}


def _example(settings: Settings) -> tuple[str, str] | None:
    store = open_existing_store(settings.sidecar_url)
    with closing(store) if store else nullcontext():
        return first_unrated(SessionLogs(Path(settings.sessions)), store)


def _program() -> str:
    """What to type: the program's name, or its path where a shell would not find it by name."""
    path = Path(sys.argv[0])
    found = shutil.which("feedback")
    is_found = found is not None and path.exists() and path.samefile(found)
    return "feedback" if is_found or path.name != "feedback" else shlex.quote(sys.argv[0])


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@", 1)
