"""`feedback export`: what the store holds, as files for others. The format decides who writes them."""

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Protocol, cast

from app.cli.options import add_common, add_settings
from app.exits import ExitCode
from feedback.errors import SettingsInvalid

_FORMATS = {
    "json": "export_interchange",
    "per-record": "export_interchange",
    "sqlite": "export_interchange",
    "jsonl": "export_training",
    "parquet": "export_training",
}
"""Each format, and the module of this package that writes it."""


class _Exporter(Protocol):
    """What such a module offers."""

    def configure(self, parser: ArgumentParser) -> None:
        """Add the arguments that only these formats have. None may be required, or have another default than None."""
        ...

    def run(self, arguments: Namespace) -> ExitCode:
        """Do it: `arguments.format`, `arguments.output`, the common ones, the settings of a store and its logs."""
        ...


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    parser.add_argument("--format", choices=tuple(_FORMATS), required=True, help="what to write")
    parser.add_argument("--output", "-o", metavar="PATH", required=True, help="where to")
    owners: dict[str, str] = {}
    for module in dict.fromkeys(_FORMATS.values()):
        before = {action.dest for action in parser._actions}  # noqa: SLF001 - argparse tells it in no other way
        _exporter(module).configure(parser)
        owners |= {action.dest: module for action in parser._actions if action.dest not in before}  # noqa: SLF001
    parser.set_defaults(owners=owners)
    add_common(parser)
    add_settings(parser, "sessions", "sidecar_url", "redis_url")


def run(arguments: Namespace) -> ExitCode:
    module = _FORMATS[arguments.format]
    for name, owner in arguments.owners.items():
        if owner != module and getattr(arguments, name) is not None:
            raise SettingsInvalid(f"--{name.replace('_', '-')}: not for --format {arguments.format}")
    return _exporter(module).run(arguments)


def _exporter(module: str) -> _Exporter:
    return cast("_Exporter", import_module(f"app.cli.{module}"))
