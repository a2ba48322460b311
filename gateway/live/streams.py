"""The event streams as a gateway reads them (docs/wire-format.md, section 6), and the topology that they follow."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from redis import asyncio as aio
from redis.exceptions import NoScriptError

from feedback import keys
from feedback.event_streams import Row, past, row_of, streams_in
from feedback.partitions import TOPOLOGY_FIELDS, PartitionId, Topology
from feedback.scripting import Script

_last_sequences = Script("gateway", "last_sequences", read_only=True)


class Followed(NamedTuple):
    """Generations whose events may still come, oldest first: the current one, and one that is being worked off."""

    generations: tuple[Topology, ...]

    @property
    def current(self) -> Topology:
        return self.generations[-1]

    @property
    def partitions(self) -> list[PartitionId]:
        return [partition for topology in self.generations for partition in topology.all_partitions()]

    def of_session(self, session_id: str) -> list[PartitionId]:
        """Where a Session's events come, in this order: an old generation is worked off before the next is served."""
        return [topology.partition_of(session_id) for topology in self.generations]


async def read_followed(redis: aio.Redis) -> Followed | None:
    """What to follow; None while no worker has set the server up, or what stands there is no topology.

    The projector keeps an old generation's checkpoints until it has seen the last of its events.
    """
    try:
        current = Topology.of_fields(await redis.execute_command("HMGET", keys.TOPOLOGY, *TOPOLOGY_FIELDS))
    except ValueError:
        return None
    if current is None:
        return None
    former = current.generation - 1
    numbers = await redis.execute_command("HLEN", keys.checkpoint(former))
    if not numbers:
        return Followed((current,))
    older = Topology(generation=former, partitions=numbers, max_note_bytes=current.max_note_bytes)
    return Followed((older, current))


async def read_new(
    redis: aio.Redis, positions: Mapping[PartitionId, int], *, count: int, block_ms: int
) -> list[tuple[PartitionId, list[Row]]]:
    """Entries past each partition's position, up to `count` each, oldest generation first; waits for the first one."""
    by_key = {keys.events(partition).encode(): partition for partition in positions}
    after = [past(position) for position in positions.values()]
    reply = await redis.execute_command("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", *by_key, *after)
    found = [(by_key[key], [row_of(*entry) for entry in entries]) for key, entries in streams_in(reply)]
    return sorted(found, key=lambda one: one[0])


async def read_range(redis: aio.Redis, partition: PartitionId, after: int, upto: int | None, count: int) -> list[Row]:
    """Up to `count` entries of the sequences `after` + 1 to `upto`, or to the end."""
    end = "+" if upto is None else upto
    reply = await redis.execute_command("XRANGE", keys.events(partition), after + 1, end, "COUNT", count)
    return [row_of(*entry) for entry in reply]


async def last_sequences(redis: aio.Redis, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
    """The sequence of each stream's last entry (0: none)."""
    names = [keys.events(partition) for partition in partitions]
    try:
        found = await redis.execute_command(*_last_sequences.by_digest(names, ()))
    except NoScriptError:
        found = await redis.execute_command(*_last_sequences.by_source(names, ()))
    return dict(zip(partitions, found, strict=True))
