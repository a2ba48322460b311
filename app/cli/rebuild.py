"""`feedback rebuild`: make the cached lists anew."""

from argparse import ArgumentParser, Namespace

from msgspec import Struct

from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import console, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import open_server
from projections.rebuild import rebuild


class RebuildReport(Struct, frozen=True):
    """The `--json` document."""

    rebuilt: bool = True


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_common(parser)
    add_settings(parser, "redis_url")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    with open_server(require_server(settings, arguments.data)) as redis:
        rebuild(redis)
    if arguments.json:
        write_json(RebuildReport())
    else:
        console().print("every cached list counts as absent now; each is made anew when it is asked for or changes")
    return ExitCode.SUCCESS
