"""`feedback worker`."""

from argparse import ArgumentParser, Namespace

from app.cli.serving import add_serving, serve
from app.exits import ExitCode
from worker.process import run_worker


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    add_serving(parser)


def run(arguments: Namespace) -> ExitCode:
    return serve(arguments, run_worker)
