"""What clients did and heard, with the interval of each call on one monotonic clock."""

from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

from msgspec import Struct

from feedback.errors import FeedbackError
from feedback.requests import Delete, Put
from feedback.results import Result

Mutation: TypeAlias = Put | Delete


class Heard(Struct, frozen=True):
    """When a call began and ended, and its answer, or the name of the failure that it raised."""

    began: float
    ended: float
    result: Result | None = None
    failure: str | None = None


class Call(Struct, frozen=True):
    """One call about a command. Its request bears the command's id."""

    request: Mutation
    heard: Heard

    @property
    def command_id(self) -> str:
        return str(self.request.command_id)


class Reading(Struct, frozen=True):
    """One `list`."""

    session_id: str
    at_least: int | None
    heard: Heard


class History(Struct):
    """All calls of all clients, in no particular order: appending to a list is atomic."""

    calls: list[Call] = []
    readings: list[Reading] = []


def listen(ask: Callable[[], Result]) -> Heard:
    """Make a call and note what came of it."""
    began = monotonic()
    try:
        result = ask()
    except FeedbackError as error:
        return Heard(began, monotonic(), failure=error.code)
    return Heard(began, monotonic(), result=result)
