"""Publishing again what an event stream lacks; an event that breaks whoever publishes it is found out and left out.

The stream then has a gap, which consumers see by its numbers, and heal from the store as any other (DESIGN,
"Projection"). Which events were left out, and why, is kept where `feedback doctor` finds it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from redis.exceptions import RedisError

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.sidecar.store import SidecarStore
from worker.claims import MOST_DEATHS
from worker.queue import ClaimQueue
from worker.unpublished import Attempt, Publication

logger = logging.getLogger(__name__)

_PAGE = 512
_MOST_BYTES = 4 * 2**20
"""Of events in one request: what a conflict answers with may be a thousand times the command, and a server takes
neither a request nor a pause of any size."""
T = TypeVar("T")


def catch_up(queue: ClaimQueue, store: SidecarStore, partition: PartitionId, published: int, head: int) -> None:
    """See to it that a partition's stream says what the store does (`head` is its last sequence there), for whoever has
    just taken it over and has not committed anything yet.

    A stream that is further is of a history that the store has lost (a failover to a standby that lagged behind, an
    older copy restored): its events, and what was made of them, give way before their sequences are used again.

    Raises:
        RedisError, StoreUnavailable: as `publish_missing`.
    """
    if published > head:
        logger.error(
            "the store has lost commits that were published: their events are taken back, and all cached lists "
            "partition=%s published=%d stored=%d",
            partition,
            published,
            head,
        )
        queue.take_events_back(partition)
        published = 0
    if published < head:
        publish_missing(queue, store, partition, published, head)


def publish_missing(queue: ClaimQueue, store: SidecarStore, partition: PartitionId, published: int, head: int) -> None:
    """Publish the store's events past `published` up to `head`, as many as the stream keeps anyway.

    When a process ended over that before, each is published by itself, and one over which `MOST_DEATHS` ended is left
    out; so is one whose publication raises what nobody foresaw.

    Raises:
        RedisError, StoreUnavailable: some may have been published; do it again.
    """
    after = max(published, head - queue.event_retention)
    logger.warning("publishing again partition=%s after=%d head=%d", partition, after, head)
    publication = queue.publication(partition)
    before = publication.begin()
    while after < head:
        page = store.outcomes(partition, after, _PAGE)
        if not page:
            break
        events = [event for event in page if event[0] not in publication.left_out]
        reach(CrashPoint.BEFORE_PUBLISHING)
        if before is not None or not _published(queue, partition, events):
            for event in events:
                _publish_alone(queue, publication, partition, event, before)
        after = page[-1][0]
    publication.end()


def _published(queue: ClaimQueue, partition: PartitionId, events: Sequence[tuple[int, bytes]]) -> bool:
    """Whether all of these events could be published together."""
    try:
        for part in in_parts(events, lambda event: len(event[1])):
            queue.publish(partition, part)
    except RedisError:
        raise
    except Exception:
        logger.exception("publishing broke, going on one by one partition=%s", partition)
        return False
    return True


def _publish_alone(
    queue: ClaimQueue,
    publication: Publication,
    partition: PartitionId,
    event: tuple[int, bytes],
    before: Attempt | None,
) -> None:
    sequence = event[0]
    deaths = before.deaths if before is not None and before.sequence == sequence else 0
    if deaths >= MOST_DEATHS:
        _leave_out(publication, partition, sequence, f"{deaths} workers ended while they published it alone")
        return
    publication.note(Attempt(sequence, deaths))
    try:
        queue.publish(partition, [event])
    except RedisError:
        raise
    except Exception as error:
        logger.exception("event broke its publication partition=%s sequence=%d", partition, sequence)
        _leave_out(publication, partition, sequence, f"{type(error).__name__}: {error}")


def _leave_out(publication: Publication, partition: PartitionId, sequence: int, reason: str) -> None:
    logger.error("event left out of its stream partition=%s sequence=%d reason=%s", partition, sequence, reason)
    publication.leave_out(sequence, reason)


def in_parts(whole: Sequence[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The whole in order, in parts of at most a few MiB, or of one that is larger."""
    begin = held = 0
    for place, one in enumerate(whole):
        if place > begin and held + size(one) > _MOST_BYTES:
            yield whole[begin:place]
            begin, held = place, 0
        held += size(one)
    if begin < len(whole):
        yield whole[begin:]
