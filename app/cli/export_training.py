"""`feedback export --format jsonl|parquet`: rated answers with the conversations before them, to train on."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.catalog import check_root, require_store
from app.cli.options import client_settings
from app.cli.output import console, printable, write_json
from app.exits import ExitCode
from app.training.export import Plan, export
from app.training.filters import Filters, moment_of
from app.training.jsonl import JsonlOutput
from app.training.output import Output, Skipped, locked
from app.training.source import place_of
from feedback.errors import MediumUnavailable, SettingsInvalid
from feedback.requests import check_text
from persistence.session_log import SessionLogs
from persistence.session_log.jsontext import well_formed

_OnSession: TypeAlias = Callable[[int, int, Skipped | None], None]


class TrainingReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `--json` document; see `Tally` for the counts."""

    output: str
    format: str
    records: int
    sessions: int
    stale: int
    unknown: int
    skipped: int
    unreadable: int
    skipped_sessions: list[Skipped]
    resumed: bool


def configure(parser: ArgumentParser) -> None:
    """The arguments of these two formats."""
    which = parser.add_argument_group("jsonl, parquet: rated answers with the conversations before them")
    which.add_argument("--since", metavar="TIME", type=_moment, help="rated (or changed) then or later: 2026-01-31")
    which.add_argument("--until", metavar="TIME", type=_moment, help="rated before then")
    which.add_argument("--rating", choices=("positive", "negative"), help="only these")
    which.add_argument("--project", metavar="CWD", action="append", help="only Sessions of this cwd; may be repeated")
    which.add_argument("--model", metavar="MODEL", action="append", help="only answers of this one; may be repeated")
    which.add_argument(
        "--pairs", action="store_const", const=True, help="a positive and a negative answer to the same prompt each"
    )
    which.add_argument(
        "--strict", action="store_const", const=True, help="exit with 1 when a Session had to be skipped"
    )
    which.add_argument("--restart", action="store_const", const=True, help="begin anew where an export was interrupted")


def run(arguments: Namespace) -> ExitCode:
    filters = _filters(arguments)
    settings = client_settings(arguments)
    path = Path(arguments.output)
    if path.is_dir():
        raise SettingsInvalid(f"--output: {path} is a directory")
    if not path.parent.is_dir():
        raise MediumUnavailable(f"--output: {path.parent} is no directory")
    logs = SessionLogs(check_root(settings.sessions, arguments.data))
    store = require_store(settings.sidecar_url, arguments.data)
    plan = Plan(
        format=arguments.format,
        pairs=bool(arguments.pairs),
        filters=filters,
        store=place_of(settings.sidecar_url),
        sessions=settings.sessions,
    )
    with closing(store):
        try:
            with locked(path), closing(_output(path, plan, restart=bool(arguments.restart))) as output:
                resumed = output.checkpoint.last_session is not None
                with _watched(arguments) as on_session:
                    export(store, logs, plan, output, on_session=on_session)
        except OSError as error:
            raise MediumUnavailable(f"{error.filename or path}: {error.strerror or error}") from error
    tally = output.checkpoint.tally
    report = TrainingReport(
        output=well_formed(str(path)),
        format=arguments.format,
        records=tally.records,
        sessions=tally.sessions,
        stale=tally.stale,
        unknown=tally.unknown,
        skipped=tally.skipped,
        unreadable=tally.unreadable,
        skipped_sessions=tally.named,
        resumed=resumed,
    )
    if arguments.json:
        write_json(report)
    else:
        console().print(_sentence(report))
    failed = report.unreadable or (arguments.strict and report.skipped)
    return ExitCode.BUSINESS if failed else ExitCode.SUCCESS


def _filters(arguments: Namespace) -> Filters:
    if arguments.pairs and arguments.rating:
        raise SettingsInvalid("--rating: a pair has one answer of each; leave it out with --pairs")
    for name in ("project", "model"):
        for value in getattr(arguments, name) or ():
            check_text(f"--{name}", value)
    return Filters(
        since=arguments.since,
        until=arguments.until,
        rating=arguments.rating,
        projects=tuple(sorted(set(arguments.project or ()))),
        models=tuple(sorted(set(arguments.model or ()))),
    )


def _output(path: Path, plan: Plan, *, restart: bool) -> Output:
    if plan.format == "jsonl":
        return JsonlOutput(path, plan.digest, restart=restart)
    try:
        from app.training.parquet import ParquetOutput  # noqa: PLC0415  an extra, which no other command needs
    except ModuleNotFoundError as error:
        reason = f"--format parquet needs {error.name}: pip install 'session-feedback[parquet]'"
        raise SettingsInvalid(reason) from None
    return ParquetOutput(path, plan.digest, pairs=plan.pairs, restart=restart)


@contextmanager
def _watched(arguments: Namespace) -> Iterator[_OnSession]:
    """A bar for people at a terminal; for all, what was skipped, on stderr (with `--json` it is in the document)."""
    if arguments.json:
        yield lambda _done, _total, _skipped: None
        return
    errors = console(stderr=True)
    columns = (TextColumn("Sessions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def on_session(done: int, total: int, skipped: Skipped | None) -> None:
            bar.update(task, completed=done, total=total)
            if skipped is not None:
                bar.console.print(
                    f"skipped {printable(skipped.session_id)}: {skipped.code}: {printable(skipped.message)}"
                )

        yield on_session


def _sentence(report: TrainingReport) -> str:
    told = f"{report.records} records in {printable(report.output)}, from {report.sessions} Sessions with feedback"
    for count, what in (
        (report.skipped, "skipped (no log, or one that cannot be read)"),
        (report.unreadable, "of these not readable now: export again when they are"),
        (report.stale, "of another life of their Session"),
        (report.unknown, "ratings of messages that no log holds"),
    ):
        told += f"; {count} {what}" if count else ""
    return told + ("; went on where an export was interrupted" if report.resumed else "")


def _moment(text: str) -> int:
    try:
        return moment_of(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a date, a date and time, or milliseconds, got {text!r}") from None
