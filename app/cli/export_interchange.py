"""`feedback export --format json|per-record|sqlite`: all feedback, as the original stores it."""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from app.catalog import require_store
from app.cli.import_interchange import print_refusals
from app.cli.options import client_settings
from app.cli.output import console, printable, write_json
from app.exits import ExitCode
from persistence.interchange.export import ExportReport, export
from persistence.interchange.media import Form
from persistence.interchange.rows import Refusal


class ExportDocument(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `--json` document; see `ExportReport` for the counts. `checked`: it is what would be, nothing was written."""

    ok: bool
    format: Form
    output: str
    checked: bool
    sessions: int
    items: int
    unchanged: int
    refused: int
    refusals: tuple[Refusal, ...]


def configure(parser: ArgumentParser) -> None:
    """The arguments of these three formats."""
    which = parser.add_argument_group("json, per-record, sqlite: all feedback, as the original stores it")
    which.add_argument(
        "--overwrite", action="store_const", const=True, help="replace what is there; of per-record, what differs"
    )
    which.add_argument("--check", action="store_const", const=True, help="say what would be written, and write nothing")


def run(arguments: Namespace) -> ExitCode:
    form, path, checked = Form(arguments.format), Path(arguments.output), bool(arguments.check)
    settings = client_settings(arguments)
    with closing(require_store(settings.sidecar_url, arguments.data)) as store:
        # Local time, and without a zone in it: the original names what it sets aside by that.
        now = datetime.now().astimezone()
        report = export(store, form, path, overwrite=bool(arguments.overwrite), check=checked, now=now)
    if arguments.json:
        write_json(_document(form, path, checked, report))
    else:
        done = "to be written" if checked else "written"
        console().print(
            f"{done}: {report.items} ratings of {report.sessions} Sessions to {printable(str(path))}"
            + (f", {report.unchanged} of these Sessions as they are there" if report.unchanged else "")
        )
        print_refusals(report.refusals, report.refused)
    return ExitCode.BUSINESS if report.refused else ExitCode.SUCCESS


def _document(form: Form, path: Path, checked: bool, report: ExportReport) -> ExportDocument:
    return ExportDocument(
        ok=not report.refused,
        format=form,
        output=printable(str(path)),
        checked=checked,
        sessions=report.sessions,
        items=report.items,
        unchanged=report.unchanged,
        refused=report.refused,
        refusals=report.refusals,
    )
