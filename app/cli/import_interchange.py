"""`feedback import --format json|per-record|sqlite`: take in feedback that the original stored."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct
from redis import Redis

from app.catalog import require_store
from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, printable, write_json
from app.endpoint import check_server_url
from app.exits import ExitCode
from app.inspection import open_server
from feedback import crashpoints
from feedback.calls import wall_clock_ms
from feedback.errors import InvalidRequest
from feedback.requests import MAX_ACTOR_BYTES, check_text
from feedback.settings import Settings
from persistence.interchange.media import Form, read_medium
from persistence.interchange.rows import Ignored, Refusal
from persistence.sidecar.store import SidecarStore
from projections.topology import check_topology, read_deployment, read_topology
from worker.importing import Importer, ImportReport
from worker.turns import Turns


class ImportDocument(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `--json` document; see `ImportReport` for the counts. `checked`: it is what would be, nothing was written."""

    ok: bool
    format: Form
    source: str
    checked: bool
    sessions: int
    added: int
    updated: int
    unchanged: int
    kept: int
    refused: int
    ignored: int
    refusals: tuple[Refusal, ...]
    ignored_entries: tuple[Ignored, ...]


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    parser.add_argument("source", metavar="SOURCE", type=Path, help="the file, or the root of the original's storage")
    parser.add_argument("--format", choices=[form.value for form in Form], required=True, help="what SOURCE is")
    parser.add_argument("--check", action="store_true", help="say what would be imported, and write nothing")
    parser.add_argument("--actor", metavar="A", help="who does this; kept in the audit trail only")
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url", "command_retention")


def run(arguments: Namespace) -> ExitCode:
    crashpoints.arm(os.environ)
    form, source = Form(arguments.format), arguments.source
    _check_actor(arguments.actor)
    settings = client_settings(arguments)
    store = require_store(settings.sidecar_url, arguments.data)
    with closing(store), _server(settings, store) as (redis, retention_s):
        importer = Importer(
            store,
            Turns(store, redis, settings),
            clock_ms=wall_clock_ms,
            retention_ms=1000 * retention_s,
            actor=arguments.actor,
        )
        report = importer.run(read_medium(form, source), check=arguments.check)
    if arguments.json:
        write_json(_document(form, source, arguments.check, report))
    else:
        _print(source, arguments.check, report)
    return ExitCode.BUSINESS if report.refused else ExitCode.SUCCESS


def print_refusals(refusals: tuple[Refusal, ...], count: int) -> None:
    """What was refused, a line each, for people."""
    out = console()
    for refusal in refusals:
        out.print(f"refused {printable(refusal.path)}: {printable(refusal.reason)}", style="red")
    if count > len(refusals):
        out.print(f"and {count - len(refusals)} more", style="red")


@contextmanager
def _server(settings: Settings, store: SidecarStore) -> Iterator[tuple[Redis | None, int]]:
    """The server of the system whose store this is, None when none is named and none runs in `--data`; and the seconds
    for which its workers keep records, which count whatever the settings here say.

    Raises:
        SettingsInvalid: it is another system's.
        QueueUnavailable: it cannot be reached.
    """
    if not settings.redis_url:
        yield None, settings.command_retention
        return
    check_server_url(settings.redis_url)
    with open_server(settings.redis_url) as redis:
        topology = read_topology(redis)
        if topology is None:
            yield redis, settings.command_retention
            return
        check_topology(topology, read_deployment(redis), store.topology())
        yield redis, topology.command_retention


def _check_actor(actor: str | None) -> None:
    check_text("--actor", actor)
    if actor is not None and len(actor.encode()) > MAX_ACTOR_BYTES:
        raise InvalidRequest("--actor", f"more than {MAX_ACTOR_BYTES} bytes")


def _document(form: Form, source: Path, checked: bool, report: ImportReport) -> ImportDocument:
    return ImportDocument(
        ok=not report.refused,
        format=form,
        source=printable(str(source)),
        checked=checked,
        sessions=report.sessions,
        added=report.added,
        updated=report.updated,
        unchanged=report.unchanged,
        kept=report.kept,
        refused=report.refused,
        ignored=report.ignored,
        refusals=report.refusals,
        ignored_entries=report.ignorances,
    )


def _print(source: Path, checked: bool, report: ImportReport) -> None:
    out = console()
    done = "to be imported" if checked else "imported"
    out.print(
        f"{done} from {printable(str(source))}, {report.sessions} Sessions: {report.added} ratings added, "
        f"{report.updated} updated, {report.unchanged} unchanged, {report.kept} kept as they are here"
    )
    print_refusals(report.refusals, report.refused)
    for ignored in report.ignorances:
        out.print(f"ignored {printable(ignored.path)}: {printable(ignored.reason)}")
    if report.ignored > len(report.ignorances):
        out.print(f"and {report.ignored - len(report.ignorances)} more")
