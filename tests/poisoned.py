"""A worker process of the tests with a defect: it dies over commands about the message "poison".

`python -m tests.poisoned WHERE`: `decode` and `decide` (killed there), `flushed` (killed when its Session's owner has
flushed, hence never at the first try), `acknowledge` (an exception that nobody foresaw, outside of what isolates); or
over their events: `publish` (killed there), `publish raises`.
"""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from app.cli import main
from feedback.commands import Command
from feedback.events import decode_event
from feedback.partitions import PartitionId
from feedback.wire import decode_job
from worker.claims import Claim, Claimed, Ending
from worker.core import rules
from worker.exchange import Exchange
from worker.queue import ClaimQueue

POISON = "poison"

_acknowledge = Exchange.acknowledge
_publish = ClaimQueue.publish


def decode(data: bytes) -> Command:
    return _survived(decode_job(data))


def decide(command: Command, *args: Any, **kwargs: Any) -> rules.Verdict:
    return rules.decide(_survived(command), *args, **kwargs)


def flushed(*_: object) -> None:
    signal.raise_signal(signal.SIGKILL)


def acknowledged(exchange: Exchange, endings: Sequence[tuple[Claimed, Ending]]) -> None:
    if any(isinstance(claim, Claim) and claim.command.message_id == POISON for claim, _ in endings):
        raise ZeroDivisionError("a bug")
    _acknowledge(exchange, endings)


def published(queue: ClaimQueue, partition: PartitionId, events: Sequence[tuple[int, bytes]]) -> None:
    if _is_poisoned(events):
        signal.raise_signal(signal.SIGKILL)
    _publish(queue, partition, events)


def unpublished(queue: ClaimQueue, partition: PartitionId, events: Sequence[tuple[int, bytes]]) -> None:
    if _is_poisoned(events):
        raise ZeroDivisionError("a bug")
    _publish(queue, partition, events)


def _is_poisoned(events: Sequence[tuple[int, bytes]]) -> bool:
    return any(decode_event(event).message_id == POISON for _, event in events)


def _survived(command: Command) -> Command:
    if command.message_id == POISON:
        signal.raise_signal(signal.SIGKILL)
    return command


DEFECTS: Mapping[str, tuple[str, Callable[..., object]]] = {
    "decode": ("feedback.wire.decode_job", decode),
    "decide": ("worker.core.batching.decide", decide),
    "flushed": ("barrier.logs.after_flush", flushed),
    "acknowledge": ("worker.exchange.Exchange.acknowledge", acknowledged),
}

PUBLISHING: Mapping[str, tuple[str, Callable[..., object]]] = {
    "publish": ("worker.queue.ClaimQueue.publish", published),
    "publish raises": ("worker.queue.ClaimQueue.publish", unpublished),
}
"""Met only where a stream has lost events."""


if __name__ == "__main__":
    with patch(*{**DEFECTS, **PUBLISHING}[sys.argv.pop(1)]):
        sys.exit(main())
