"""Other processes that use a SQLite store, and the short way to write into one."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from persistence.sidecar import SqliteStore
from persistence.sidecar.store import PutItem, StartSession
from tests.conformance.sidecar_engines import FIRST_LIFE, commit, item
from tests.preforked import preforked

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 60.0


def rate(store: SqliteStore, *messages: str, after: int = 0) -> None:
    """Put these messages of Session "s", at the revisions past `after`."""
    puts = [PutItem("s", item(message), revision) for revision, message in enumerate(messages, start=after + 1)]
    commit(store, [StartSession("s", FIRST_LIFE), *puts])


@contextmanager
def child(script: str, *arguments: str | Path, under: tuple[str, ...] = ()) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs the script, perhaps under a tracer; it is killed in the end."""
    command = [*under, sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run(script: str, *arguments: str | Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run the script in a process with these variables, to its end: exit code (negative: the signal) and stdout."""
    environ = os.environ | dict(variables)
    forking = preforked(environ)
    assert forking is not None
    code, out, _ = forking.run("tests.scripted", [script, *map(str, arguments)], environ, ROOT, _PATIENCE_S)
    return code, out.decode()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
