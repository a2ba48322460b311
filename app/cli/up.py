"""`feedback up`: everything on one machine."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from urllib.parse import urlsplit

from app.catalog import first_ratable
from app.cli.options import add_common, add_settings, named_settings
from app.cli.output import console, printable, write_json
from app.exits import ExitCode
from app.logs import setup_logging
from app.system import System
from app.up import UpPlan, plan_up, run_up
from persistence.session_log import SessionLogs


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser)
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def run(arguments: Namespace) -> ExitCode:
    setup_logging(json_lines=arguments.log_json or arguments.json)
    plan = plan_up(arguments.data, named_settings(arguments), os.environ, arguments.config)

    def announce(system: System) -> None:
        if arguments.json:
            write_json(_summary(plan, system))
        else:
            _greet(plan, system, str(arguments.data))

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
        "pids": {child.name: child.pid for child in system.children},
    }


def _greet(plan: UpPlan, system: System, data: str) -> None:
    settings, out = system.settings, console()
    pids = ", ".join(f"{child.name} {child.pid}" for child in system.children)
    server = "embedded, AOF every second" if not plan.settings.redis_url else "yours"
    out.print("session-feedback is running. Ctrl-C stops it; the data stays.", style="bold green")
    out.print(f"  server     {_without_password(settings.redis_url)} ({server})")
    out.print(f"  store      {settings.sidecar_url}")
    out.print(f"  Sessions   {settings.sessions}")
    out.print(f"  processes  {pids}; logs in {system.logs}")
    where = "" if data == "data" else f" --data {data}"
    out.print("Next, in another terminal:")
    out.print(f"  feedback sessions{where}")
    if example := first_ratable(SessionLogs(Path(settings.sessions))):
        session, message = map(printable, example)
        out.print(f'  feedback put {session} {message} positive --note "Clear and short"{where}')


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@", 1)
