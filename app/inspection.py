"""What stands in Redis about a running system, for `status`, `doctor` and the wait until it serves."""

from collections.abc import Mapping

from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.partitions import Topology


class Ownership(Struct, frozen=True):
    """Who owns which partition. Owners that are not alive count as none; `topology` is None on a new server."""

    topology: Topology | None
    owners: Mapping[int, str | None]
    workers: tuple[str, ...]
    """Live workers, in order of their ids."""

    @property
    def is_complete(self) -> bool:
        """Whether every partition has a live owner."""
        return self.topology is not None and all(self.owners.values())


class PartitionLoad(Struct, frozen=True, kw_only=True, rename="camel"):
    """One partition's commands: waiting, claimed by its owner, failed; and events published and projected."""

    partition: int
    owner: str | None
    waiting: int
    claimed: int
    failed: int
    published: int
    projected: int

    @property
    def lag(self) -> int:
        """Events that lists do not show yet."""
        return max(0, self.published - self.projected)


def read_topology(redis: Redis) -> Topology | None:
    """The topology that clients follow."""
    fields = redis.hmget(keys.TOPOLOGY, ["generation", "partitions", "max_note_bytes"])
    if None in fields:
        return None
    generation, partitions, max_note_bytes = (int(field) for field in fields if field is not None)
    return Topology(generation=generation, partitions=partitions, max_note_bytes=max_note_bytes)


def read_ownership(redis: Redis) -> Ownership:
    """Raises `redis.exceptions.RedisError` as the connection does."""
    topology = read_topology(redis)
    workers = sorted(map(_text, redis.smembers(keys.WORKERS)))
    alive = _alive(redis, workers)
    if topology is None:
        return Ownership(None, {}, alive)
    named = redis.hgetall(keys.owners(topology.generation))
    owners = {int(number): _text(owner) for number, owner in named.items()}
    return Ownership(
        topology,
        {number: owners[number] if owners.get(number) in alive else None for number in range(topology.partitions)},
        alive,
    )


def read_loads(redis: Redis, ownership: Ownership) -> list[PartitionLoad]:
    """Each partition's queue, in three round trips. Raises `redis.exceptions.RedisError`."""
    topology = ownership.topology
    if topology is None:
        return []
    partitions = topology.all_partitions()
    projected = redis.hgetall(keys.checkpoint(topology.generation))
    with redis.pipeline(transaction=False) as pipeline:
        for partition in partitions:
            pipeline.llen(keys.queue(partition))
            pipeline.llen(keys.claimed(partition))
            pipeline.zcard(keys.failed_registry(partition))
            pipeline.xrevrange(keys.events(partition), count=1)
        replies = pipeline.execute()
    loads = []
    for at, partition in enumerate(partitions):
        waiting, claimed, failed, newest = replies[4 * at : 4 * at + 4]
        loads.append(
            PartitionLoad(
                partition=partition.number,
                owner=ownership.owners[partition.number],
                waiting=waiting,
                claimed=claimed,
                failed=failed,
                published=_sequence(newest),
                projected=int(projected.get(str(partition.number).encode(), 0)),
            )
        )
    return loads


def _alive(redis: Redis, workers: list[str]) -> tuple[str, ...]:
    if not workers:
        return ()
    beats = redis.mget([keys.worker_session(worker) for worker in workers])
    return tuple(worker for worker, beat in zip(workers, beats, strict=True) if beat is not None)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _sequence(newest: list[tuple[bytes, object]]) -> int:
    """A stream entry's id is `<sequence>-0`."""
    return int(newest[0][0].split(b"-")[0]) if newest else 0
