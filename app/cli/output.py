"""What commands print: one JSON document for programs, or short text for people. stdout carries nothing else."""

import sys
from datetime import UTC, datetime
from typing import NoReturn

import msgspec
from rich.console import Console

STYLES = {"positive": "green", "negative": "red"}
_NO_WIDTH = 10_000
"""Wider than any line of a table."""


def write_json(document: object) -> None:
    """One compact JSON document and a newline."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")


class _Console(Console):
    """rich would exit with 1, which means a business failure here."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Text for people: colour on a terminal only (rich honours NO_COLOR), lines never wrapped.

    Only a terminal has a width that a table has to fit: what goes to a file or to `grep` is whole.
    """
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else _NO_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """Text from outside, safe for a terminal: what is not printable appears escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shortened(text: str, width: int) -> str:
    """Text on one line of at most `width` characters."""
    words = " ".join(text.split())
    return printable(words if len(words) <= width else words[: width - 1] + "…")


def moment(milliseconds: int) -> str:
    """A time since the Unix epoch, in UTC, to the second."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
