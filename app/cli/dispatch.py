"""From words to a command. Each command's module is imported only when it is the one that was asked for."""

import os
import sys
import traceback
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn, Protocol, cast

import msgspec

from app.exits import ExitCode, exit_code_of
from feedback.connection import is_out_of_reach
from feedback.errors import FeedbackError, QueueUnavailable, ResultTimeout
from feedback.settings import unknown_variables

_PROGRAM = "feedback"
_COMMANDS = {
    "up": ("up", "run everything on this machine: server, worker, projector"),
    "worker": ("worker", "run one worker; several share the partitions"),
    "projector": ("projector", "run the projector, which answers list queries"),
    "agent": ("agent", "run where the Session logs are, for workers that do not see them"),
    "gateway": ("gateway", "serve HTTP: ratings, live events"),
    "token": ("token", "create, list or revoke the gateway's bearer tokens"),
    "put": ("ratings", "rate a message"),
    "delete": ("ratings", "remove the rating of a message"),
    "list": ("ratings", "list a Session's ratings"),
    "audit": ("audit", "show who changed a Session's ratings, and when"),
    "partitions": ("partitions", "show or change the number of partitions"),
    "sessions": ("sessions", "list Sessions, their messages and ratings: what there is to rate"),
    "status": ("status", "show owners, queues and the projection's lag"),
    "import": ("import_interchange", "take in feedback that the original stored, while everything runs"),
    "export": ("export", "write ratings to files, in one of several formats"),
    "migrate": ("migrate", "move the store between SQLite and PostgreSQL"),
    "dlq": ("dlq", "list, show, retry or drop commands that failed"),
    "rebuild": ("rebuild", "make the cached lists anew, while everything runs"),
    "doctor": ("doctor", "check server, store and log root, and say what to do"),
}


class _CommandGroup(Protocol):
    """What a command's module offers."""

    def configure(self, command: str, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        ...

    def run(self, arguments: Namespace) -> ExitCode:
        """Do it. Failures of the infrastructure are raised."""
        ...


class _Parser(ArgumentParser):
    """argparse, with its errors in the form that `--json` promises, and the usage of the command that was given."""

    def parse_known_args(  # type: ignore[override]  # argparse's own also takes namespaces of other classes
        self, args: Iterable[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Refuse what is unknown: argparse has a command pass it up, and then shows the usage of the whole program."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        first = next(iter(sys.argv[1:]), "")
        if self.prog == _PROGRAM and first.startswith("-"):  # argparse would take the option's value for the command
            message = f"{first}: options go behind the command: feedback COMMAND {first} ..."
        if _wants_json():
            self.exit(ExitCode.USAGE, _error_line("Usage", message))
        super().error(message)


class _Version(Action):
    """argparse's own would look the version up for every command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002  argparse's name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version  # noqa: PLC0415  slow to load

        sys.stdout.write(f"session-feedback {version('session-feedback')}\n")
        parser.exit()


def parser_for(arguments: Sequence[str]) -> tuple[ArgumentParser, _CommandGroup | None]:
    """The parser for these arguments, and the module of the command that they name (None: they name none).

    Only that command's own arguments are known to it; the others are there by name and help.
    """
    parser = _Parser(prog=_PROGRAM, description="Durable, ordered feedback on the answers of LLM-agent Sessions.")
    parser.add_argument("--version", action=_Version, help="print this program's version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), "")
    group = None
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == asked:
            group = cast("_CommandGroup", import_module(f"app.cli.{module}"))
            group.configure(name, command)
    return parser, group


def main() -> int:
    """Run the command that `sys.argv` names; failures become a line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except FeedbackError as error:
        said = explained(error)
        sys.stderr.write(_error_line(error.code, said) if _wants_json() else f"{error.code}: {said}\n")
        return exit_code_of(error)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.INFRASTRUCTURE
    except Exception as error:  # noqa: BLE001  a defect must not look like a business answer (exit code 1)
        if _wants_json():
            sys.stderr.write(_error_line(type(error).__name__, str(error)))
        else:
            traceback.print_exc()
        return ExitCode.INFRASTRUCTURE
    return code


def _run(words: list[str]) -> ExitCode:
    parser, group = parser_for(words)
    if not words:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    arguments = parser.parse_args(words)
    assert group is not None
    _warn_of_unknown_variables()
    return group.run(arguments)


def _warn_of_unknown_variables() -> None:
    """Once per process, on stderr: a misspelled variable sets nothing, and whoever set it expects that it does."""
    for name, near in unknown_variables(os.environ).items():
        message = f"{name} is no setting and has no effect" + (f"; is {near} meant?" if near else "")
        sys.stderr.write(_line("warning", "VariableUnknown", message) if _wants_json() else f"warning: {message}\n")


def explained(error: FeedbackError) -> str:
    """The error's sentence, and what whoever typed the command can do about it."""
    said = str(error)
    if isinstance(error, ResultTimeout):
        return f"{said.partition(';')[0]}; run it again with --command-id {error.command_id}"
    if isinstance(error, QueueUnavailable) and is_out_of_reach(error.__cause__):
        return f"{said.rstrip('.')}; is it running? --redis-url or FEEDBACK_REDIS_URL names it; `feedback doctor`"
    return said


def _wants_json() -> bool:
    """Asked of the words themselves: some errors come before they are parsed."""
    return "--json" in sys.argv


def _error_line(code: str, message: str) -> str:
    return _line("error", code, message)


def _line(kind: str, code: str, message: str) -> str:
    document = {kind: {"code": code, "message": message.encode(errors="backslashreplace").decode()}}
    return msgspec.json.encode(document).decode() + "\n"
