"""The topology as every engine keeps it: integers by name."""

from collections.abc import Mapping

from feedback.partitions import PartitionId
from persistence.sidecar.store import StoredTopology


def topology_from(values: Mapping[str, int]) -> StoredTopology | None:
    """The topology whose members are these, None without any."""
    if not values:
        return None
    # `former` and `retired` came with the first change of the number of partitions.
    former, retired = values.get("former", 0), bool(values.get("retired", True))
    return StoredTopology(
        values["generation"], values["partitions"], former, retired, deployment=values.get("deployment", 0)
    )


def serves(topology: StoredTopology | None, partition: PartitionId) -> bool:
    """Whether the partition may have an owner: the former generation until it is retired, then the current one."""
    return topology is None or partition.generation == topology.generation - (not topology.retired)
