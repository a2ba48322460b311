"""The topology as a worker finds it or sets it up: in the store for good, in Redis for everyone to see."""

from redis import Redis

from feedback import keys
from feedback.errors import SettingsInvalid
from feedback.partitions import Topology
from feedback.settings import Settings
from persistence.sidecar.store import SidecarStore, StoredTopology


def establish(redis: Redis, store: SidecarStore, settings: Settings) -> Topology:
    """Agree with the store and with Redis, or set up what is new.

    Raises:
        SettingsInvalid: settings, store and Redis disagree; the message has the values.
    """
    stored = store.topology()
    if stored is None:
        fresh = StoredTopology(generation=1, partitions=settings.partitions)
        store.set_topology(fresh, replacing=None)
        stored = store.topology() or fresh
    if stored.partitions != settings.partitions:
        raise SettingsInvalid(
            f"partitions: {settings.partitions} here, but the store was set up with {stored.partitions}; "
            f"set it to {stored.partitions}"
        )
    topology = Topology(
        generation=stored.generation, partitions=stored.partitions, max_note_bytes=settings.max_note_bytes
    )
    _agree_with_redis(redis, topology)
    publish(redis, topology)
    return topology


def publish(redis: Redis, topology: Topology) -> None:
    """Write the topology where clients and projectors read it."""
    redis.hset(
        keys.TOPOLOGY,
        mapping={
            "generation": topology.generation,
            "partitions": topology.partitions,
            "max_note_bytes": topology.max_note_bytes,
        },
    )


def _agree_with_redis(redis: Redis, topology: Topology) -> None:
    known = redis.hmget(keys.TOPOLOGY, "generation", "partitions", "max_note_bytes")
    values = [int(value) for value in known if value is not None]
    if len(values) != len(known):
        return
    generation, partitions, max_note_bytes = values
    if (generation, partitions) != (topology.generation, topology.partitions):
        raise SettingsInvalid(
            f"topology: Redis has generation {generation} with {partitions} partitions, the store generation "
            f"{topology.generation} with {topology.partitions}; is this the right store for this server?"
        )
    if max_note_bytes != topology.max_note_bytes and _others_live(redis):
        raise SettingsInvalid(
            f"max_note_bytes: {topology.max_note_bytes} here, but running workers use {max_note_bytes}; "
            "stop them first, or use their value"
        )


def _others_live(redis: Redis) -> bool:
    members = [member for member in redis.smembers(keys.WORKERS) if isinstance(member, bytes)]
    return any(redis.exists(keys.worker_session(member.decode())) for member in members)
