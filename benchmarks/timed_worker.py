"""A worker that notes when it takes each step of a round: `python -m benchmarks.timed_worker FILE worker`.

A line of FILE is one round: a JSON object of steps and when they were taken, in nanoseconds of the monotonic clock,
which all processes of a machine share. The step `claimed` is taken when the answer to a claim has come.
"""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import msgspec

from app.cli import main
from persistence.sidecar.sqlite_transaction import SqliteTransaction
from worker.core.batching import decide_batch
from worker.engine import Engine
from worker.link import Link

P = ParamSpec("P")
T = TypeVar("T")


class _Notes:
    """The steps of the round that is under way."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._steps: dict[str, int] = {}

    def note(self, step: str) -> None:
        self._steps[step] = time.monotonic_ns()

    def around(self, call: Callable[P, T], before: str | None, after: str | None = None) -> Callable[P, T]:
        """The same call, with its beginning and its end noted."""

        @functools.wraps(call)
        def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            if before is not None:
                self.note(before)
            result = call(*args, **kwargs)
            if after is not None:
                self.note(after)
            return result

        return noted

    def sending(self, send: Callable[..., None]) -> Callable[..., None]:
        """What is sent after a commit ends the round."""

        @functools.wraps(send)
        def noted(*args: Any) -> None:
            self.note("acknowledging")
            send(*args)
            self.note("sent")
            if "committed" in self._steps:
                self._file.write(msgspec.json.encode(self._steps) + b"\n")
                self._steps.clear()

        return noted


def _run(path: Path) -> int:
    notes = _Notes(path)
    with (
        patch.object(Link, "send", notes.sending(Link.send)),
        patch.object(Link, "receive", notes.around(Link.receive, None, "claimed")),
        patch.object(Engine, "process", notes.around(Engine.process, "processing", "committed")),
        patch.object(SqliteTransaction, "load", notes.around(SqliteTransaction.load, "loading")),
        patch("worker.engine.decide_batch", notes.around(decide_batch, "deciding")),
        patch.object(SqliteTransaction, "apply", notes.around(SqliteTransaction.apply, "applying", "applied")),
    ):
        return main()


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv.pop(1))))
