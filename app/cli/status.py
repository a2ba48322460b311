"""`feedback status`: owners, queues, the projection's lag, and what is in the way of whom."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import closing

import msgspec
from msgspec import Struct
from redis import Redis
from rich import box
from rich.table import Table
from rich.text import Text

from app.catalog import open_existing_store
from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, moment, printable, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import Ownership, ServerFacts, open_server, read_ownership, read_server
from feedback.calls import wall_clock_ms
from feedback.errors import StoreForeign, StoreUnavailable
from feedback.partitions import PartitionId, Topology
from feedback.troubles import read_troubles
from projections.lag import lag
from projections.waiting import Backlog, read_backlog


class PartitionStatus(Struct, frozen=True, kw_only=True):
    """One partition. `lag`: outcomes that are committed and not projected yet; null when there is no store to ask."""

    partition: int
    owner: str | None
    waiting: int
    claimed: int
    failed: int
    lag: int | None


class TopologyStatus(Struct, frozen=True, rename="camel"):
    """How Sessions are spread over queues."""

    generation: int
    partitions: int
    max_note_bytes: int


class TroubleLine(Struct, frozen=True):
    """What is in the way of a process (`reporter`) since when (milliseconds): a failure's name and its sentence."""

    reporter: str
    code: str
    message: str
    since: int


class SystemStatus(Struct, frozen=True, kw_only=True):
    """The `--json` document."""

    server: ServerFacts
    topology: TopologyStatus | None
    workers: tuple[str, ...]
    waiting: int
    claimed: int
    failed: int
    lag: int | None
    partitions: tuple[PartitionStatus, ...]
    troubles: tuple[TroubleLine, ...]


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    with open_server(require_server(settings, arguments.data)) as redis:
        server, ownership = read_server(redis), read_ownership(redis)
        troubles = [
            TroubleLine(reporter, trouble.code, trouble.message, trouble.since)
            for reporter, trouble in read_troubles(redis).items()
        ]
        queues: dict[PartitionId, Backlog] = {}
        lags: dict[PartitionId, int] = {}
        if ownership.topology is not None:
            queues = read_backlog(redis, ownership.topology.all_partitions())
            try:
                lags = _lags(redis, settings.sidecar_url, ownership.topology)
            except (StoreUnavailable, StoreForeign) as error:
                troubles.append(TroubleLine("this command", error.code, str(error), wall_clock_ms()))
    status = _status(server, ownership, queues, lags, troubles)
    if arguments.json:
        write_json(status)
    else:
        _print(status)
    return ExitCode.SUCCESS


def _lags(redis: Redis, sidecar_url: str, topology: Topology) -> dict[PartitionId, int]:
    store = open_existing_store(sidecar_url)
    if store is None:
        return {}
    with closing(store):
        return lag(redis, store, topology)


def _status(
    server: ServerFacts,
    ownership: Ownership,
    queues: dict[PartitionId, Backlog],
    lags: dict[PartitionId, int],
    troubles: Sequence[TroubleLine],
) -> SystemStatus:
    return SystemStatus(
        server=server,
        topology=msgspec.convert(ownership.topology, TopologyStatus | None, from_attributes=True),
        workers=ownership.workers,
        waiting=sum(queue.waiting for queue in queues.values()),
        claimed=sum(queue.claimed for queue in queues.values()),
        failed=sum(queue.failed for queue in queues.values()),
        lag=sum(lags.values()) if lags else None,
        partitions=tuple(
            PartitionStatus(
                partition=partition.number,
                owner=ownership.owners[partition.number],
                waiting=queue.waiting,
                claimed=queue.claimed,
                failed=queue.failed,
                lag=lags.get(partition),
            )
            for partition, queue in queues.items()
        ),
        troubles=tuple(troubles),
    )


def _print(status: SystemStatus) -> None:
    out, server, topology = console(), status.server, status.topology
    persistence = "append-only file on" if server.append_only else "append-only file OFF"
    if server.append_only_fails:
        persistence += ", WRITING IT FAILS"
    out.print(f"server      {server.name} {server.version}, {persistence}, {server.used_memory / 2**20:.1f} MiB")
    for trouble in status.troubles:
        line = printable(f"{trouble.reporter}, since {moment(trouble.since)}: {trouble.code}: {trouble.message}")
        out.print(Text.assemble("trouble     ", (line, "bold red")))
    if topology is None:
        out.print("topology    none yet: no worker has set this server up")
        return
    out.print(f"topology    generation {topology.generation}, {topology.partitions} partitions")
    out.print(f"commands    {status.waiting} waiting, {status.claimed} claimed, {status.failed} failed")
    out.print(f"projection  {'unknown lag' if status.lag is None else f'{status.lag} outcomes behind'}")
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("owner", overflow="fold")
    for name in ("partitions", "waiting", "claimed", "failed", "lag"):
        table.add_column(name, justify="right")
    for owner in (*status.workers, None):
        owned = [one for one in status.partitions if one.owner == owner]
        if owner is not None or owned:
            table.add_row(printable(owner or "(nobody)"), *_totals(owned))
    out.print(table)


def _totals(owned: list[PartitionStatus]) -> list[str]:
    behind = [one.lag for one in owned if one.lag is not None]
    return [
        str(len(owned)),
        str(sum(one.waiting for one in owned)),
        str(sum(one.claimed for one in owned)),
        str(sum(one.failed for one in owned)),
        str(sum(behind)) if behind else "-",
    ]
