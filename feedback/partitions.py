"""Which partition serves a Session (DESIGN, "Queue topology")."""

from zlib import crc32

from msgspec import Struct


class PartitionId(Struct, frozen=True, order=True):
    """One queue of one generation of the topology."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"


class Topology(Struct, frozen=True, kw_only=True):
    """How Sessions are spread over queues, and the bound on notes that all processes share.

    `generation` grows by one each time the number of partitions changes.
    """

    generation: int
    partitions: int
    max_note_bytes: int

    def partition_of(self, session_id: str) -> PartitionId:
        """CRC-32 of the id's UTF-8 bytes, modulo the number of partitions: any language can compute it."""
        return PartitionId(self.generation, crc32(session_id.encode()) % self.partitions)

    def all_partitions(self) -> tuple[PartitionId, ...]:
        return tuple(PartitionId(self.generation, number) for number in range(self.partitions))
