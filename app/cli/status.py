"""`feedback status`: who owns what, what waits and since when, the projection's lag, and what is in the way of whom."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence

from redis import Redis
from redis.exceptions import RedisError
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.cli.options import add_common, add_settings, client_settings, positive
from app.cli.output import console, moment, printable, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import open_server
from app.status import PartitionStatus, SystemStatus, read_status
from feedback.calls import wall_clock_ms

_MOST_LISTED = 20
"""Partitions that a table names one by one; those with the oldest commands first."""
_COLUMNS = ("waiting", "claimed", "parked", "failed", "oldest", "lag")


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    parser.add_argument(
        "--watch",
        nargs="?",
        type=positive,
        const=1,
        metavar="SECONDS",
        help="show it again and again, every second or so, until Ctrl-C",
    )
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    with open_server(require_server(settings, arguments.data)) as redis:
        status = read_status(redis, settings.sidecar_url)
        if arguments.watch is None:
            _show_once(status, as_json=arguments.json)
            return ExitCode.SUCCESS
        looks = _looks(redis, settings.sidecar_url, arguments.watch)
        try:
            _watch_json(status, looks) if arguments.json else _watch(status, looks)
        except KeyboardInterrupt:
            return ExitCode.SUCCESS  # how a watch ends
    return ExitCode.SUCCESS


def _show_once(status: SystemStatus, *, as_json: bool) -> None:
    if as_json:
        write_json(status)
    else:
        console().print(_rendered(status))


def _looks(redis: Redis, sidecar_url: str, seconds: int) -> Iterator[SystemStatus | RedisError]:
    """A look every so many seconds, for ever; a server that is gone for a while does not end it."""
    while True:
        time.sleep(seconds)
        try:
            yield read_status(redis, sidecar_url)
        except RedisError as error:
            yield error


def _watch_json(first: SystemStatus, looks: Iterator[SystemStatus | RedisError]) -> None:
    """One document a line."""
    _write_line(first)
    for look in looks:
        if isinstance(look, SystemStatus):
            _write_line(look)


def _write_line(status: SystemStatus) -> None:
    write_json(status)
    sys.stdout.flush()


def _watch(first: SystemStatus, looks: Iterator[SystemStatus | RedisError]) -> None:
    """On a terminal in place, like `top`; elsewhere one look below the other."""
    out = console()
    show: Callable[[RenderableType], None] = out.print
    if not out.is_terminal:
        show(_rendered(first))
        for look in looks:
            show(_look(look))
            sys.stdout.flush()
        return
    with Live(_rendered(first), console=out, screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(_look(look), refresh=True)


def _look(look: SystemStatus | RedisError) -> RenderableType:
    if isinstance(look, SystemStatus):
        return _rendered(look)
    return Text(f"{moment(wall_clock_ms())}  the server does not answer: {printable(str(look))}", style="bold red")


def _rendered(status: SystemStatus) -> RenderableType:
    server, topology = status.server, status.topology
    persistence = "append-only file on" if server.append_only else "append-only file OFF"
    if server.append_only_fails:
        persistence += ", WRITING IT FAILS"
    lines = [Text(f"server      {server.name} {server.version}, {persistence}, {server.used_memory / 2**20:.1f} MiB")]
    for trouble in status.troubles:
        line = printable(f"{trouble.reporter}, since {moment(trouble.since)}: {trouble.code}: {trouble.message}")
        lines.append(Text.assemble("trouble     ", (line, "bold red")))
    if topology is None:
        return Group(*lines, Text("topology    none yet: no worker has set this server up"))
    now_ms = wall_clock_ms()
    age = "" if status.oldest is None else f"; the oldest is {_age(status.oldest, now_ms)} old"
    lines += [
        Text(f"topology    generation {topology.generation}, {topology.partitions} partitions"),
        Text(f"commands    {status.waiting} waiting, {status.claimed} claimed, {status.failed} failed{age}"),
        Text(f"projection  {'unknown lag' if status.lag is None else f'{status.lag} outcomes behind'}"),
    ]
    return Group(*lines, _table(status, now_ms))


def _table(status: SystemStatus, now_ms: int) -> Table:
    """A row per owner with its sums, and below it one for each of its partitions that is not quiet."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    # On a terminal too narrow for both, an id goes on in the next line rather than that a number is cut.
    table.add_column("owner", overflow="fold")
    for name in ("partitions", *_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    busy = sorted((one for one in status.partitions if not one.is_quiet), key=lambda one: one.oldest or now_ms)
    listed = {one.partition for one in busy[:_MOST_LISTED]}
    for owner in (*status.workers, None):
        owned = [one for one in status.partitions if one.owner == owner]
        if owner is not None or owned:
            style = "bold" if owner is not None else "bold red"
            table.add_row(printable(owner or "(nobody)"), str(len(owned)), *_cells(owned, now_ms), style=style)
        for one in owned:
            if one.partition in listed:
                table.add_row(f"  partition {one.partition}", "", *_cells([one], now_ms))
    return table


def _cells(partitions: Sequence[PartitionStatus], now_ms: int) -> list[str]:
    behind = [one.lag for one in partitions if one.lag is not None]
    oldest = [one.oldest for one in partitions if one.oldest is not None]
    return [
        str(sum(one.waiting for one in partitions)),
        str(sum(one.claimed for one in partitions)),
        str(sum(one.parked for one in partitions)),
        str(sum(one.failed for one in partitions)),
        _age(min(oldest), now_ms) if oldest else "-",
        str(sum(behind)) if behind else "-",
    ]


def _age(since_ms: int, now_ms: int) -> str:
    """How long ago, in the largest unit that makes it two or more."""
    seconds = max(0, now_ms - since_ms) / 1000
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
