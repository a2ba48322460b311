"""Taking partitions over, in the one order that loses nothing: fence off whoever had them, recover, catch up."""

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.sidecar.store import Fence, SidecarStore
from worker.claims import Recovered
from worker.publishing import catch_up
from worker.queue import ClaimQueue


class TakenOver(Struct, frozen=True):
    """A partition, the fence to commit under, and what its last owner left behind."""

    partition: PartitionId
    fence: Fence
    left: Recovered


def take_over(
    queue: ClaimQueue,
    store: SidecarStore,
    partitions: Sequence[PartitionId],
    owner: str,
    *,
    bereft: Collection[int] = (),
) -> Iterator[TakenOver]:
    """Those of these partitions that are `owner`'s, whose queue this is, by lease and by fence. Commands that were
    claimed of them are back on their queues, in order, and their event streams have all that was committed.

    `bereft` are the numbers of those whose last owner ended without giving them back.

    Raises:
        RedisError, StoreUnavailable: those that came before are taken over.
    """
    reach(CrashPoint.AFTER_LEASE)
    for partition, fence in store.acquire_fences(partitions, owner).items():
        reach(CrashPoint.AFTER_FENCE)
        left = queue.recover(partition, bereft=partition.number in bereft)
        if left is None:
            continue
        reach(CrashPoint.AFTER_RECOVERY)
        catch_up(queue, store, partition, left.published, fence.sequence)
        yield TakenOver(partition, fence, left)
