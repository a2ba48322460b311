"""`feedback migrate`: move the store between SQLite and PostgreSQL."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, printable, write_json
from app.exits import ExitCode
from app.inspection import open_server, read_ownership
from feedback.errors import SettingsInvalid
from feedback.settings import Settings
from persistence.sidecar.transfer import Census, Moved, Step, Table, abandon, move
from persistence.sidecar.transfer.moving import OnStep


class MigrateReport(Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """The `--json` document; URLs without passwords. `resumed`: an earlier run had begun; `already`: it had ended."""

    source: str
    target: str
    resumed: bool
    already: bool
    tables: Mapping[Table, Census]


class AbandonReport(Struct, frozen=True):
    """The `--json` document of `--abandon`."""

    abandoned: bool = True


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, "redis_url")
    url = "sqlite:///path or postgresql://user@host/database"
    parser.add_argument("--from", dest="source", metavar="URL", required=True, help=f"the store that is there: {url}")
    parser.add_argument("--to", dest="target", metavar="URL", required=True, help="where it goes; must be empty")
    parser.add_argument("--abandon", action="store_true", help="give an unfinished move up: --from serves again")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    if arguments.abandon:
        abandon(arguments.source, arguments.target)
        if arguments.json:
            write_json(AbandonReport())
        else:
            console().print("given up: the store serves as before, and the copy is gone")
        return ExitCode.SUCCESS
    _refuse_live_workers(settings)
    with _watched(arguments) as on_step:
        moved = move(arguments.source, arguments.target, on_step)
    if arguments.json:
        write_json(
            MigrateReport(
                source=moved.source,
                target=moved.target,
                resumed=moved.resumed,
                already=moved.already,
                tables=moved.censuses,
            )
        )
    else:
        _print(moved)
    return ExitCode.SUCCESS


def _refuse_live_workers(settings: Settings) -> None:
    """For their users' sake: what they would commit meanwhile is refused by the store itself.

    Raises:
        SettingsInvalid: the server that is named knows live workers.
        QueueUnavailable: it is out of reach.
    """
    if not settings.redis_url:
        return
    with open_server(settings.redis_url) as redis:
        workers = read_ownership(redis).workers
    if workers:
        raise SettingsInvalid(
            f"{len(workers)} workers are alive, the first is {workers[0]}: stop workers and projectors first (hosts "
            "may go on: what they send waits), and start them with the new sidecar_url afterwards"
        )


@contextmanager
def _watched(arguments: Namespace) -> Iterator[OnStep]:
    """A bar for people at a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = arguments.json or not sys.stderr.isatty()
    with Progress(*columns, console=console(stderr=True), disable=hidden, transient=True) as bar:
        tasks = {}

        def on_step(step: Step) -> None:
            if step.what not in tasks:
                tasks[step.what] = bar.add_task(step.what)
            bar.update(tasks[step.what], completed=step.done, total=step.total)

        yield on_step


def _print(moved: Moved) -> None:
    out = console()
    told = "had been moved" if moved.already else "moved"
    out.print(f"{told} from {printable(moved.source)}\n{' ' * (len(told) - 2)}to {printable(moved.target)}")
    out.print("the same on both sides:")
    for table, census in moved.censuses.items():
        out.print(f"  {table:<9}{census.rows:>10} rows, digest {census.digest}")
    out.print("Next: start workers and projector with the new sidecar_url. The old store serves nobody any more.")
