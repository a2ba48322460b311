"""What stands in Redis and the store about a running system, for `status`, `doctor` and the wait until it serves."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct
from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.connection import connect
from feedback.errors import QueueUnavailable, SettingsInvalid
from feedback.partitions import Topology
from projections.topology import ASK_TOPOLOGY, topology_of


class Ownership(Struct, frozen=True):
    """Who owns which partition; an owner that is not alive counts as none. `topology` is None on a new server."""

    topology: Topology | None
    owners: Mapping[int, str | None]
    workers: tuple[str, ...]
    """Live workers, in order of their ids."""

    @property
    def is_complete(self) -> bool:
        """Whether every partition has a live owner."""
        return self.topology is not None and all(self.owners.values())


class ServerFacts(Struct, frozen=True, rename="camel"):
    """What a server says about itself."""

    name: str
    version: str
    append_only: bool
    append_only_fails: bool
    """The last write to the append-only file failed: the server refuses whatever would change something."""
    maxmemory_policy: str
    used_memory: int

    @property
    def is_supported(self) -> bool:
        """Redis 7.0 and newer, Valkey 8 and newer."""
        major = self.version.partition(".")[0]
        return major.isdecimal() and int(major) >= (8 if self.name == "valkey" else 7)


@contextmanager
def open_server(url: str) -> Iterator[Redis]:
    """A client whose failures are typed.

    Raises:
        QueueUnavailable: the server cannot be reached, or refuses.
    """
    try:
        with connect(url) as redis:
            yield redis
    except RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


def read_server(redis: Redis) -> ServerFacts:
    """Raises `redis.exceptions.RedisError`."""
    info = redis.info("server") | redis.info("persistence") | redis.info("memory")
    is_valkey = info.get("server_name") == "valkey"
    return ServerFacts(
        name="valkey" if is_valkey else "redis",
        version=str(info["valkey_version" if is_valkey else "redis_version"]),
        append_only=info.get("aof_enabled") == 1,
        append_only_fails=info.get("aof_last_write_status", "ok") != "ok",
        maxmemory_policy=str(info.get("maxmemory_policy", "unknown")),
        used_memory=int(info["used_memory"]),
    )


def refuse_unfit_server(url: str) -> None:
    """Refuse a server on which commands would be lost; one that does not answer now is judged by whoever needs it.

    Raises:
        SettingsInvalid: it is too old, or evicts keys without a TTL.
    """
    try:
        with open_server(url) as redis:
            facts = read_server(redis)
    except QueueUnavailable:
        return
    if not facts.is_supported:
        raise SettingsInvalid(f"redis_url: {facts.name} {facts.version} is too old; Redis 7.0 or Valkey 8 is needed")
    if facts.maxmemory_policy.startswith("allkeys"):
        raise SettingsInvalid(
            f"redis_url: the server evicts (maxmemory-policy {facts.maxmemory_policy}) and would drop commands in"
            " silence; set it to noeviction"
        )


def read_ownership(redis: Redis) -> Ownership:
    """In two round trips. Raises `redis.exceptions.RedisError`."""
    with redis.pipeline(transaction=False) as pipeline:
        pipeline.execute_command(*ASK_TOPOLOGY)
        pipeline.smembers(keys.WORKERS)
        standing, members = pipeline.execute(raise_on_error=False)
    topology = topology_of(standing)
    if isinstance(members, RedisError):
        raise members
    workers = sorted(map(_text, members))
    with redis.pipeline(transaction=False) as pipeline:
        if workers:
            pipeline.mget(map(keys.worker_session, workers))
        if topology is not None:
            pipeline.hgetall(keys.owners(topology.generation))
        replies = pipeline.execute()
    beats = replies.pop(0) if workers else ()
    alive = tuple(worker for worker, beat in zip(workers, beats, strict=True) if beat is not None)
    if topology is None:
        return Ownership(None, {}, alive)
    owners = {int(number): _text(owner) for number, owner in replies[0].items()}
    return Ownership(
        topology,
        {number: owners[number] if owners.get(number) in alive else None for number in range(topology.partitions)},
        alive,
    )


def read_parked(redis: Redis, workers: Iterable[str]) -> dict[str, int]:
    """Partition -> Sessions that wait, as live workers say. Raises `redis.exceptions.RedisError`."""
    with redis.pipeline(transaction=False) as pipeline:
        for worker in workers:
            pipeline.hgetall(keys.parked(worker))
        notes = pipeline.execute(raise_on_error=False)
    return {
        _text(partition): int(number)
        for note in notes
        if isinstance(note, dict)  # a stranger's key in its place says nothing
        for partition, number in note.items()
        if number.isdigit()
    }


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
