"""How far the projection is behind the store."""

from redis import Redis

from feedback.partitions import PartitionId, Topology
from persistence.sidecar.store import SidecarStore
from projections.cache import ListCache


def lag(redis: Redis, store: SidecarStore, topology: Topology) -> dict[PartitionId, int]:
    """Outcomes per partition that are committed but not projected yet; 0 everywhere when idle.

    Raises:
        RedisError: the checkpoints could not be read.
        StoreUnavailable: the store could not be read.
    """
    # Checkpoints first: a commit in between shows as lag, not as a projection ahead of the store.
    known = ListCache(redis).checkpoints(topology.generation)
    heads = store.heads(topology.all_partitions())
    return {partition: head - known.get(partition.number, 0) for partition, head in heads.items()}
