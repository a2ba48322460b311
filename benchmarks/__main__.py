"""`python -m benchmarks [name ...]`: run benchmarks one after the other, and print what they found."""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.agents import agents
from benchmarks.barrier import grown, unchanged
from benchmarks.crowd import enqueueing, hot_session, saturated, workers
from benchmarks.figures import Figure
from benchmarks.first_reading import first_reading
from benchmarks.flat import catalog, history, items
from benchmarks.http import http_puts
from benchmarks.idle import idle
from benchmarks.lists import listed, lists, replay
from benchmarks.lone import lone_puts
from benchmarks.machine import machine
from benchmarks.measure import Run
from benchmarks.memory import reading_memory
from benchmarks.page import pages
from benchmarks.parts import parts
from benchmarks.report import Report, print_machine, print_table, write_json
from benchmarks.way import way

BENCHMARKS: Mapping[str, Callable[[Run], list[Figure]]] = {
    "lone": lone_puts,
    "way": way,
    "parts": parts,
    "enqueue": enqueueing,
    "saturated": saturated,
    "workers": workers,
    "hot": hot_session,
    "http": http_puts,
    "page": pages,
    "items": items,
    "catalog": catalog,
    "history": history,
    "lists": lists,
    "replay": replay,
    "listed": listed,
    "idle": idle,
    "barrier": unchanged,
    "growth": grown,
    "agents": agents,
    "first-reading": first_reading,
    "memory": reading_memory,
}


def main() -> None:
    """Exit code 0 whatever the figures say: a slow machine is not a broken benchmark."""
    arguments = _parser().parse_args()
    run = Run(arguments.directory, quick=arguments.quick)
    console = Console(stderr=arguments.json, highlight=False)
    found = machine(run.directory)
    print_machine(console, found)
    figures: dict[str, list[Figure]] = {}
    for name in arguments.names or BENCHMARKS:
        start = time.monotonic()
        figures[name] = BENCHMARKS[name](run)
        promise = (BENCHMARKS[name].__doc__ or "").strip().rstrip(".")
        print_table(console, name, promise, figures[name])
        console.print(f"  {time.monotonic() - start:.0f} s", style="dim")
    if arguments.json:
        write_json(Report(machine=found, quick=run.quick, figures=figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help=", ".join(BENCHMARKS), metavar="name")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it works, not how fast it is")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, the tables on stderr")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the files of the systems lie: on the disk that is to be measured (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    main()
