"""What is claimed of RQ's queues, and what comes of it: values, without I/O.

Claimed ids lie on a list of ours, not on RQ's intermediate one: RQ's housekeeping, run by any stock
worker, fails what it finds there for a minute (PEERS, 3.3), and a parked Session may wait longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self, TypeAlias

from msgspec import Struct

from feedback.commands import Command
from feedback.errors import FeedbackError
from feedback.failures import Failure, failure_of
from feedback.flushing import LiveOwner
from feedback.partitions import PartitionId
from worker.core.batching import Answered

MOST_DEATHS = 3
"""Workers that may end while they try one command alone, before it goes to the failed registry."""


class Claim(Struct, frozen=True):
    """One claimed command."""

    partition: PartitionId
    job_id: bytes
    command: Command
    digest: bytes
    size: int
    """Bytes of its job data: what holding it costs."""
    owner: LiveOwner | None = None
    """The Session's live owner when the command was claimed."""
    owner_known: bool = False
    """Whether the claim says who that is; if not, ask (`feedback.live_owners`)."""
    suspect: bool = False
    """Two workers ended while it was claimed, so it is tried alone: it may be what kills them."""


class Malformed(Struct, frozen=True):
    """A claimed job that is never executed: it is no command of ours, or kills whoever tries."""

    partition: PartitionId
    job_id: bytes
    error: FeedbackError


class Gone(Struct, frozen=True):
    """A claimed id whose job no longer exists: somebody deleted it, or Redis lost it."""

    partition: PartitionId
    job_id: bytes


Claimed: TypeAlias = Claim | Malformed | Gone


class Failed(Struct, frozen=True):
    """A command's end in the failed registry."""

    failure: Failure
    traceback: str

    @classmethod
    def of(cls, error: FeedbackError) -> Self:
        """A typed failure; its sentence says all, so there is no traceback to show."""
        return cls(failure_of(error), f"{type(error).__module__}.{type(error).__qualname__}: {error}\n")


Ending: TypeAlias = Answered | Failed | None
"""What a claimed command came to; None for a job that is gone."""


Endings: TypeAlias = Mapping[PartitionId, Sequence[tuple[Claimed, Ending]]]
"""What a batch came to, by partition, in each in claim order."""


class Batch(Struct, frozen=True):
    """What one partition gave: claims in queue order, and whether more waits."""

    claims: Sequence[Claimed]
    more: bool


class Recovered(Struct, frozen=True):
    """A partition as its last owner left it: commands put back, and the last sequence in its event stream (0: none)."""

    commands: int
    published: int
    again: bool = False
    """Its owners ended twice in a row over commands that they had claimed."""


class StreamBehind(Exception):
    """The partition's event stream lacks events that the store has, past `sequence`. Nothing was acknowledged."""

    def __init__(self, partition: PartitionId, sequence: int) -> None:
        super().__init__(f"event stream {partition} ends at {sequence}")
        self.partition = partition
        self.sequence = sequence


class Taken(Struct, frozen=True):
    """What a claim brought: by partition, None for one that is another worker's now; and rings of the wake list."""

    batches: Mapping[PartitionId, Batch | None]
    rings: Sequence[bytes]


def grouped(endings: Iterable[tuple[Claimed, Ending]]) -> Endings:
    """Endings by partition, in each of which they keep their order."""
    groups: dict[PartitionId, list[tuple[Claimed, Ending]]] = {}
    for ended in endings:
        groups.setdefault(ended[0].partition, []).append(ended)
    return groups
