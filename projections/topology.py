"""What a projector reads of the deployment's topology (DESIGN, "Queue topology")."""

from redis import Redis

from feedback import keys
from feedback.errors import SettingsInvalid
from feedback.partitions import TOPOLOGY_FIELDS, Topology
from persistence.sidecar.store import StoredTopology


def read_topology(redis: Redis) -> Topology | None:
    """The topology that workers and clients go by; None while there is none, or what stands there is not one."""
    if redis.execute_command("TYPE", keys.TOPOLOGY) != b"hash":
        return None
    try:
        return Topology.of_fields(redis.execute_command("HMGET", keys.TOPOLOGY, *TOPOLOGY_FIELDS))
    except ValueError:
        return None


def check_topology(topology: Topology, stored: StoredTopology | None) -> None:
    """Refuse a store that is not this Redis server's.

    The store gets a topology before Redis does, so it may be ahead, never behind.

    Raises:
        SettingsInvalid: with both topologies.
    """
    ours = (topology.generation, topology.partitions)
    theirs = (stored.generation, stored.partitions) if stored else None
    if theirs is None or theirs[0] < ours[0] or (theirs[0] == ours[0] and theirs[1] != ours[1]):
        found = f"generation {theirs[0]} of {theirs[1]} partitions" if theirs else "none"
        raise SettingsInvalid(
            f"redis_url and sidecar_url belong to different deployments: Redis has generation {ours[0]} of "
            f"{ours[1]} partitions, the store has {found}"
        )
