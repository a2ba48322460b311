"""A worker that keeps something of each batch: `python -m tests.soak.leaking worker`. The soak must find it out."""

import sys
from typing import Any

from app.cli import main
from worker.engine import Engine

_KEPT: list[bytearray] = []
_PER_COMMAND = 2**15


def leak() -> None:
    """From now on this process keeps 32 KiB of each command."""
    process = Engine.process

    def leaking(self: Engine, batch: Any, *rest: Any) -> Any:
        _KEPT.append(bytearray(b"x" * _PER_COMMAND * len(batch)))
        return process(self, batch, *rest)

    Engine.process = leaking  # type: ignore[assignment, method-assign]  # that is the point


if __name__ == "__main__":
    leak()
    sys.exit(main())
