"""`feedback partitions`: show or change the number of queues that Sessions are spread over."""

import os
from argparse import ArgumentParser, Namespace
from contextlib import closing

from msgspec import Struct
from redis import Redis

from app.catalog import require_store
from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import open_server
from feedback import crashpoints
from feedback.errors import InvalidRequest, StoreUnavailable
from persistence.sidecar.store import SidecarStore, StoredTopology
from worker import topology as topologies

_MOST = 4096


class PartitionsReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `--json` document. `former` partitions of the generation before are still being worked off (0: none)."""

    generation: int
    partitions: int
    former: int


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url")
    steps = parser.add_subparsers(dest="step", metavar="set")
    setting = steps.add_parser("set", help="change the number; safe while everything runs")
    setting.add_argument("number", metavar="N", type=int, help=f"1 to {_MOST}")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    data = arguments.data
    with (
        open_server(require_server(settings, data)) as redis,
        closing(require_store(settings.sidecar_url, data)) as store,
    ):
        stored = _changed(arguments, redis, store)
    report = PartitionsReport(
        generation=stored.generation,
        partitions=stored.partitions,
        former=0 if stored.retired else stored.former,
    )
    if arguments.json:
        write_json(report)
    else:
        _print(report)
    return ExitCode.SUCCESS


def _changed(arguments: Namespace, redis: Redis, store: SidecarStore) -> StoredTopology:
    """The topology, after the change if one was asked for.

    Raises:
        InvalidRequest: the number is out of bounds.
        SettingsInvalid, QueueUnavailable: it cannot be changed now.
    """
    if arguments.step == "set":
        crashpoints.arm(os.environ)
        if not 1 <= arguments.number <= _MOST:
            raise InvalidRequest("N", f"expected 1 to {_MOST} partitions, got {arguments.number}")
        return topologies.change(redis, store, arguments.number)
    stored = store.topology()
    if stored is None:
        raise StoreUnavailable("the store was never set up: start a worker first")
    return stored


def _print(report: PartitionsReport) -> None:
    out = console()
    out.print(f"generation {report.generation}, {report.partitions} partitions")
    if report.former:
        out.print(
            f"{report.former} partitions of generation {report.generation - 1} are still being worked off; "
            "commands of the new one wait until they are"
        )
