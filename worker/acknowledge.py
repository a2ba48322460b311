"""Acknowledging a batch, and healing event streams that lost what the store has (DESIGN, "Acknowledging")."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore
from worker.claims import Claimed, ClaimQueue, Ending, StreamBehind
from worker.core.batching import Answered

logger = logging.getLogger(__name__)

_PAGE = 512
_MOST_BYTES = 4 * 2**20
"""Of events in one request: what a conflict answers with may be a thousand times the command, and a server takes
neither a request nor a pause of any size."""

T = TypeVar("T")


def in_parts(endings: Sequence[tuple[Claimed, Ending]]) -> Iterator[Sequence[tuple[Claimed, Ending]]]:
    """A batch's endings in order, in parts that one request each may carry."""
    return _parts(endings, lambda ending: len(ending[1].encoded) if isinstance(ending[1], Answered) else 0)


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


def publish_missing(queue: ClaimQueue, store: SidecarStore, partition: PartitionId, published: int, head: int) -> None:
    """Publish the store's events past `published` up to `head`, as many as the stream keeps anyway."""
    after = max(published, head - queue.event_retention)
    logger.warning("publishing again partition=%s after=%d head=%d", partition, after, head)
    while after < head:
        events = store.outcomes(partition, after, _PAGE)
        if not events:
            return
        reach(CrashPoint.BEFORE_PUBLISHING)
        for part in _parts(events, lambda event: len(event[1])):
            queue.publish(partition, part)
        after = events[-1][0]


def _parts(whole: Sequence[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The whole in order, in parts of at most `_MOST_BYTES`, or of one that is larger."""
    begin = held = 0
    for place, one in enumerate(whole):
        if place > begin and held + size(one) > _MOST_BYTES:
            yield whole[begin:place]
            begin, held = place, 0
        held += size(one)
    if begin < len(whole):
        yield whole[begin:]
