"""Which partition serves a Session (DESIGN, "Queue topology")."""

from collections.abc import Iterable
from zlib import crc32

from msgspec import Struct

USUAL_RETENTION_S = 7 * 24 * 3600
TOPOLOGY_FIELDS = ("generation", "partitions", "max_note_bytes", "command_retention")
"""Of the hash at `keys.TOPOLOGY`."""
DEPLOYMENT_FIELD = "deployment"
"""Of the same hash: a number that says which store the server's workers use (absent or 0: unknown)."""


class PartitionId(Struct, frozen=True, order=True):
    """One queue of one generation of the topology."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"


class Topology(Struct, frozen=True, kw_only=True):
    """How Sessions are spread over queues, and the bounds that all processes share.

    `generation` grows by one each time the number of partitions changes. No deadline lies further ahead
    than `command_retention` seconds.
    """

    generation: int
    partitions: int
    max_note_bytes: int
    command_retention: int = USUAL_RETENTION_S

    def partition_of(self, session_id: str) -> PartitionId:
        """CRC-32 of the id's UTF-8 bytes, modulo the number of partitions: any language can compute it."""
        return PartitionId(self.generation, crc32(session_id.encode()) % self.partitions)

    @staticmethod
    def of_fields(values: Iterable[bytes | str | None]) -> "Topology | None":
        """The values of `TOPOLOGY_FIELDS` as a topology; None when one is missing (the last may be).

        Raises:
            ValueError: anybody may have written it, and it is none.
        """
        generation, partitions, max_note_bytes, retention = (None if one is None else int(one) for one in values)
        if generation is None or partitions is None or max_note_bytes is None:
            return None
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        return Topology(
            generation=generation,
            partitions=partitions,
            max_note_bytes=max_note_bytes,
            command_retention=retention or USUAL_RETENTION_S,
        )

    def all_partitions(self) -> tuple[PartitionId, ...]:
        return tuple(PartitionId(self.generation, number) for number in range(self.partitions))
