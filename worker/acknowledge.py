"""Acknowledging a batch, and healing event streams that lost what the store has (DESIGN, "Acknowledging")."""

import logging
from collections.abc import Sequence

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore
from worker.claims import Claimed, ClaimQueue, Ending, StreamBehind

logger = logging.getLogger(__name__)

_PAGE = 512


def acknowledge(queue: ClaimQueue, store: SidecarStore, endings: Sequence[tuple[Claimed, Ending]]) -> None:
    """Publish results and events and drop the claims, in one atomic step; events that a stream lost go first."""
    if not endings:
        return
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
        queue.publish(partition, events)
        after = events[-1][0]
