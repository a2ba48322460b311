"""`feedback doctor`: is everything as it should be, and if not, what to do."""

from argparse import ArgumentParser, Namespace

from rich.text import Text

from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, printable, write_json
from app.diagnosis import Finding, diagnose
from app.endpoint import check_server_url
from app.exits import ExitCode


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url", "sessions")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    if settings.redis_url:
        check_server_url(settings.redis_url)
    findings = diagnose(settings, arguments.data)
    healthy = all(finding.ok for finding in findings)
    if arguments.json:
        write_json({"healthy": healthy, "findings": [_document(finding) for finding in findings]})
    else:
        for finding in findings:
            console().print(_line(finding))
    return ExitCode.SUCCESS if healthy else ExitCode.INFRASTRUCTURE


def _document(finding: Finding) -> dict[str, object]:
    members = {"check": finding.check, "ok": finding.ok, "detail": finding.detail}
    return members if finding.ok else members | {"action": finding.action}


def _line(finding: Finding) -> Text:
    mark = ("ok    ", "green") if finding.ok else ("wrong ", "bold red")
    line = Text.assemble(mark, f"{finding.check:<17}{printable(finding.detail)}")
    return line if finding.action is None else line.append(f"\n      do: {finding.action}", "yellow")
