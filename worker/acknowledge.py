"""Acknowledging a batch, and healing event streams that lost what the store has (DESIGN, "Acknowledging")."""

from collections.abc import Iterator, Sequence

from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore
from worker import publishing
from worker.claims import Claimed, Ending, Endings, Failed, StreamBehind, grouped
from worker.core.batching import Answered
from worker.publishing import publish_missing
from worker.queue import ClaimQueue

_AT_ONCE = 64
"""Commands that one run of the script acknowledges. What it holds of them, each several times over, then fits the
caches of the server's core, which makes it a sixth faster than for 256; and others are served in between."""


def in_parts(endings: Sequence[tuple[Claimed, Ending]]) -> Iterator[Sequence[tuple[Claimed, Ending]]]:
    """A batch's endings in order, in parts that one request each may carry."""
    return publishing.in_parts(endings, lambda ending: len(ending[1].encoded) if isinstance(ending[1], Answered) else 0)


def at_once(part: Sequence[tuple[Claimed, Ending]]) -> Iterator[Endings]:
    """One of these parts, by partition, as it is best acknowledged: some commands after the other, without a pause.

    Failures stay together with all before them: of two runs the server may refuse the first alone (for want of memory),
    and those which are noted earlier are the first to be retried.
    """
    if any(isinstance(ending, Failed) for _, ending in part):
        yield grouped(part)
        return
    for begin in range(0, len(part), _AT_ONCE):
        yield grouped(part[begin : begin + _AT_ONCE])


def acknowledge(queue: ClaimQueue, store: SidecarStore, endings: Sequence[tuple[Claimed, Ending]]) -> None:
    """Publish results and events and drop the claims, each atomically; events that a stream lost go first."""
    for part in in_parts(endings):
        _acknowledge(queue, store, part)


def _acknowledge(queue: ClaimQueue, store: SidecarStore, endings: Sequence[tuple[Claimed, Ending]]) -> None:
    healed: set[PartitionId] = set()
    while True:
        try:
            # What the store itself no longer has cannot be healed: that gap stays, and consumers see it.
            queue.finish(endings, past_gap=healed)
        except StreamBehind as behind:
            head = store.heads([behind.partition])[behind.partition]
            publish_missing(queue, store, behind.partition, behind.sequence, head)
            healed.add(behind.partition)
        else:
            return
