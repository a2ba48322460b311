"""`feedback projector`."""

from argparse import ArgumentParser, Namespace

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from projections.process import run_projector


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_serving(parser)


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, run_projector)
