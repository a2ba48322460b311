"""A worker process of the tests with a defect: it dies over commands about the message "poison".

`python -m tests.poisoned WHERE`: `decode` and `decide` (killed there), `flushed` (killed when its Session's owner has
flushed, hence never at the first try), `acknowledge` (an exception that nobody foresaw, outside of what isolates).
"""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from app.cli import main
from feedback.commands import Command
from feedback.wire import decode_job
from worker.claims import Claim, Claimed, Ending
from worker.core import rules
from worker.exchange import Exchange

POISON = "poison"

_send = Exchange.send


def decode(data: bytes) -> Command:
    return _survived(decode_job(data))


def decide(command: Command, *args: Any, **kwargs: Any) -> rules.Verdict:
    return rules.decide(_survived(command), *args, **kwargs)


def flushed(*_: object) -> None:
    signal.raise_signal(signal.SIGKILL)


def acknowledged(exchange: Exchange, endings: Sequence[tuple[Claimed, Ending]] = (), *args: Any, **kwargs: Any) -> None:
    if any(isinstance(claim, Claim) and claim.command.message_id == POISON for claim, _ in endings):
        raise ZeroDivisionError("a bug")
    _send(exchange, endings, *args, **kwargs)


def _survived(command: Command) -> Command:
    if command.message_id == POISON:
        signal.raise_signal(signal.SIGKILL)
    return command


DEFECTS: Mapping[str, tuple[str, Callable[..., object]]] = {
    "decode": ("feedback.wire.decode_job", decode),
    "decide": ("worker.core.batching.decide", decide),
    "flushed": ("barrier.logs.after_flush", flushed),
    "acknowledge": ("worker.exchange.Exchange.send", acknowledged),
}


if __name__ == "__main__":
    with patch(*DEFECTS[sys.argv.pop(1)]):
        sys.exit(main())
