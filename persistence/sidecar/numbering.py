"""A partition's records follow each other without a gap."""

from collections.abc import MutableMapping, Sequence

from feedback.partitions import PartitionId
from persistence.sidecar.store import CommandRecord


def follow(records: Sequence[CommandRecord], sequences: MutableMapping[PartitionId, int]) -> None:
    """Advance each partition's last sequence over its records.

    Raises:
        ValueError: a record that does not follow the last one, or whose partition is not among `sequences`.
    """
    for record in records:
        last = sequences.get(record.partition)
        if last is None:
            raise ValueError(f"a record of partition {record.partition}, which this transaction is not fenced for")
        if record.sequence != last + 1:
            raise ValueError(f"partition {record.partition}: record {record.sequence} does not follow {last}")
        sequences[record.partition] = record.sequence
