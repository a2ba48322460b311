"""The topology as a worker finds it or sets it up: in the store for good, in Redis for everyone to see.

Changing the number of partitions makes a new generation (DESIGN, "Queue topology"): clients use it at once, and
workers once the former generation's queues are empty. Which of the two may have owners is the store's to say.
"""

import secrets

from msgspec import Struct
from msgspec.structs import replace
from redis import Redis

from feedback import keys
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import QueueUnavailable, SettingsInvalid
from feedback.partitions import DEPLOYMENT_FIELD, TOPOLOGY_FIELDS, PartitionId, Topology
from feedback.settings import Settings
from persistence.sidecar.store import SidecarStore, StoredTopology

USUAL_PARTITIONS = 32


class Standing(Struct, frozen=True):
    """The current topology, and the former one while it is still being worked off."""

    stored: StoredTopology
    current: Topology
    former: Topology | None

    @property
    def served(self) -> Topology:
        """The one whose partitions may have owners now."""
        return self.former or self.current


def establish(redis: Redis, store: SidecarStore, settings: Settings) -> Standing:
    """Agree with the store and with Redis, or set up what is new.

    Raises:
        SettingsInvalid: settings, store and Redis disagree; the message has the values.
    """
    stored = store.topology()
    if stored is None:
        partitions = settings.partitions or USUAL_PARTITIONS
        store.set_topology(StoredTopology(1, partitions, deployment=secrets.randbits(62)), replacing=None)
        stored = _stored(store)
    if settings.partitions not in {0, stored.partitions}:
        raise SettingsInvalid(
            f"partitions: {settings.partitions} here, but the store was set up with {stored.partitions}; "
            f"set it to {stored.partitions}, or change them all by `feedback partitions set {settings.partitions}`"
        )
    standing = standing_of(stored, settings)
    _agree_with_redis(redis, standing)
    publish(redis, standing.current, stored.deployment)
    return standing


def current_standing(store: SidecarStore, settings: Settings) -> Standing:
    """What the store says now."""
    return standing_of(_stored(store), settings)


def standing_of(stored: StoredTopology, settings: Settings) -> Standing:
    """What the store says, with the bounds that the settings give."""
    current = _topology(stored.generation, stored.partitions, settings)
    former = None if stored.retired else _topology(stored.generation - 1, stored.former, settings)
    return Standing(stored, current, former)


def _topology(generation: int, partitions: int, settings: Settings) -> Topology:
    return Topology(
        generation=generation,
        partitions=partitions,
        max_note_bytes=settings.max_note_bytes,
        command_retention=settings.command_retention,
    )


def change(redis: Redis, store: SidecarStore, partitions: int) -> StoredTopology:
    """Begin a new generation of so many partitions; the topology that holds from now on.

    Raises:
        SettingsInvalid: the store has no topology yet, or its last change is still under way.
        QueueUnavailable: somebody else changed it at the same moment.
    """
    stored = store.topology()
    if stored is None:
        raise SettingsInvalid("the store was never set up: start a worker first")
    if stored.partitions != partitions:
        if not stored.retired:
            raise SettingsInvalid(
                f"the last change is still under way: {stored.former} partitions of generation "
                f"{stored.generation - 1} are being worked off; try again when they are (`feedback partitions`)"
            )
        successor = replace(
            stored,
            generation=stored.generation + 1,
            partitions=partitions,
            former=stored.partitions,
            retired=False,
        )
        if not store.set_topology(successor, replacing=stored):
            raise QueueUnavailable("the topology was changed by somebody else at the same moment; look again")
        stored = successor
        reach(CrashPoint.AFTER_SUCCESSION)
    # Also when nothing changed: an earlier try may have ended between the store and Redis.
    redis.hset(keys.TOPOLOGY, mapping={"generation": stored.generation, "partitions": stored.partitions})
    return stored


def is_drained(redis: Redis, topology: Topology) -> bool:
    """Whether nothing of this generation waits, and nothing is claimed."""
    partitions = topology.all_partitions()
    lists = (*map(keys.queue, partitions), *map(keys.claimed, partitions), *map(keys.aside, partitions))
    return redis.exists(*lists) == 0


def publish(redis: Redis, topology: Topology, deployment: int = 0) -> None:
    """Write the topology where clients and projectors read it; `deployment` says which store it is of."""
    redis.hset(
        keys.TOPOLOGY,
        mapping={
            "generation": topology.generation,
            "partitions": topology.partitions,
            "max_note_bytes": topology.max_note_bytes,
            "command_retention": topology.command_retention,
            DEPLOYMENT_FIELD: deployment,
        },
    )


def former_partitions(stored: StoredTopology) -> tuple[PartitionId, ...]:
    """The queues of the generation before, where jobs may still turn up (an operator requeues an old failure)."""
    return tuple(PartitionId(stored.generation - 1, number) for number in range(stored.former))


def _stored(store: SidecarStore) -> StoredTopology:
    stored = store.topology()
    if stored is None:
        raise SettingsInvalid("the store has no topology any more: was its file replaced?")
    return stored


def _agree_with_redis(redis: Redis, standing: Standing) -> None:
    """Redis may lag behind the store (it lost a change), but never know more than it, nor know another store."""
    topology = standing.current
    try:
        known = Topology.of_fields(redis.hmget(keys.TOPOLOGY, TOPOLOGY_FIELDS))
    except ValueError:
        raise SettingsInvalid(f"topology: what stands at {keys.TOPOLOGY} in Redis is none; delete that key") from None
    if known is None:
        return
    if known.generation > topology.generation or (
        known.generation == topology.generation and known.partitions != topology.partitions
    ):
        raise SettingsInvalid(
            f"topology: Redis has generation {known.generation} with {known.partitions} partitions, the store "
            f"generation {topology.generation} with {topology.partitions}; is this the right store for this server?"
        )
    deployment = redis.hget(keys.TOPOLOGY, DEPLOYMENT_FIELD)
    if isinstance(deployment, bytes) and deployment not in (b"0", str(standing.stored.deployment).encode()):
        raise SettingsInvalid(
            "sidecar_url: another store than the one that this Redis server's workers use; name that one, or, if it "
            f"is gone for good, delete the key {keys.TOPOLOGY} with no worker running"
        )
    for bound in ("max_note_bytes", "command_retention"):
        ours, theirs = getattr(topology, bound), getattr(known, bound)
        if ours != theirs and _others_live(redis):
            raise SettingsInvalid(
                f"{bound}: {ours} here, but running workers use {theirs}; stop them first, or use their value"
            )


def _others_live(redis: Redis) -> bool:
    members = [member for member in redis.smembers(keys.WORKERS) if isinstance(member, bytes)]
    return any(redis.exists(keys.SESSION_PREFIX.encode() + member) for member in members)
