"""Results as tables for people, or as one JSON document."""

import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Spread, Target
from benchmarks.machine import Machine

_BOUNDS = {"at most": "≤", "at least": "≥"}


class Report(Struct, frozen=True, kw_only=True):
    """All that one run found, by benchmark."""

    machine: Machine
    quick: bool
    figures: Mapping[str, Sequence[Figure]]


def write_json(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")


def print_machine(console: Console, machine: Machine) -> None:
    facts = f"{machine.cores} cores of {machine.processor}, {machine.system}, {machine.file_system}"
    console.print(f"{facts}; Python {machine.python}, SQLite {machine.sqlite}", soft_wrap=True)


def print_table(console: Console, name: str, promise: str, figures: Sequence[Figure]) -> None:
    """One benchmark. The spread is from the first to the third quartile."""
    table = Table(title=f"{name}: {promise}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for heading in ("median", "spread", "", "ratio", "spread", "target"):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in figures:
        ratio, ratio_spread = ("", "") if figure.ratio is None else _spread(figure.ratio, "×")
        label = figure.name if figure.against is None else f"{figure.name}, to {figure.against}"
        table.add_row(
            label, *_spread(figure.value), figure.unit, ratio, ratio_spread, _target(figure.target, figure.met)
        )
    console.print(table)


def _spread(spread: Spread, mark: str = "") -> tuple[str, str]:
    return f"{mark}{_number(spread.median)}", f"{_number(spread.low)} to {_number(spread.high)}"


def _number(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(target: Target | None, met: bool | None) -> str:
    if target is None:
        return ""
    mark = "×" if target.of == "ratio" else ""
    word = "[green]met[/]" if met else "[red]missed[/]"
    return f"{_BOUNDS[target.bound]} {mark}{_number(target.limit)} {word}"
