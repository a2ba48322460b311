"""What a projector reads of the deployment's topology (DESIGN, "Queue topology")."""

from collections.abc import Sequence

from redis import Redis
from redis.exceptions import ResponseError

from feedback import keys
from feedback.errors import SettingsInvalid
from feedback.partitions import DEPLOYMENT_FIELD, TOPOLOGY_FIELDS, Topology
from persistence.sidecar.store import StoredTopology

ASK_TOPOLOGY = ("HMGET", keys.TOPOLOGY, *TOPOLOGY_FIELDS)
"""The command whose reply `topology_of` understands."""


def read_topology(redis: Redis) -> Topology | None:
    """The topology that workers and clients go by; None while there is none, or what stands there is not one."""
    try:
        return topology_of(redis.execute_command(*ASK_TOPOLOGY))
    except ResponseError as refusal:
        return topology_of(refusal)


def topology_of(reply: Sequence[bytes | None] | ResponseError) -> Topology | None:
    """A reply to `ASK_TOPOLOGY`, as `read_topology` gives it. Raises what the server refused it with, unless that is
    what stands there."""
    if isinstance(reply, ResponseError):
        if not str(reply).startswith("WRONGTYPE"):
            raise reply
        return None
    try:
        return Topology.of_fields(reply)
    except ValueError:
        return None


def read_deployment(redis: Redis) -> bytes | None:
    """Which store the server's workers use; None when it does not say."""
    if redis.execute_command("TYPE", keys.TOPOLOGY) != b"hash":
        return None
    deployment: bytes | None = redis.execute_command("HGET", keys.TOPOLOGY, DEPLOYMENT_FIELD)
    return None if deployment == b"0" else deployment


def check_topology(topology: Topology, deployment: bytes | None, stored: StoredTopology | None) -> None:
    """Refuse a store that is not this Redis server's.

    The store gets a topology before Redis does, so it may be ahead, never behind.

    Raises:
        SettingsInvalid: with both topologies; or two stores of like topology.
    """
    ours = (topology.generation, topology.partitions)
    theirs = (stored.generation, stored.partitions) if stored else None
    if theirs is None or theirs[0] < ours[0] or (theirs[0] == ours[0] and theirs[1] != ours[1]):
        found = f"generation {theirs[0]} of {theirs[1]} partitions" if theirs else "none"
        raise SettingsInvalid(
            f"redis_url and sidecar_url belong to different deployments: Redis has generation {ours[0]} of "
            f"{ours[1]} partitions, the store has {found}"
        )
    if stored is not None and deployment not in (None, str(stored.deployment).encode()):
        raise SettingsInvalid(
            "redis_url and sidecar_url belong to different deployments: the workers use another store"
        )
