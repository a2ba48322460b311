"""A partition's records follow each other without a gap, and its owner's knowledge of them is the store's."""

from collections.abc import MutableMapping, Sequence

from feedback.partitions import PartitionId
from persistence.sidecar.store import CommandRecord, PartitionsFenced


def follow(records: Sequence[CommandRecord], sequences: MutableMapping[PartitionId, int]) -> None:
    """Advance each partition's last committed sequence over its records.

    Raises:
        PartitionsFenced: a partition's first record does not follow what is committed. Its owner took it over from a
            store that has lost commits since (a failover to a standby that lagged behind, an older copy restored),
            or shares its epoch with another owner for the same reason; it has to take it over anew.
        ValueError: a later record does not follow the one before, or its partition is not among `sequences`.
    """
    begun: set[PartitionId] = set()
    for record in records:
        partition = record.partition
        last = sequences.get(partition)
        if last is None:
            raise ValueError(f"a record of partition {partition}, which this transaction is not fenced for")
        if record.sequence != last + 1:
            if partition in begun:
                raise ValueError(f"partition {partition}: record {record.sequence} does not follow {last}")
            raise PartitionsFenced([partition])
        begun.add(partition)
        sequences[partition] = record.sequence
