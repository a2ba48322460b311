"""What a worker tells about its work, to whoever measures it (`worker.metrics`)."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from barrier.rules import DurabilityBarrier
from feedback.errors import FeedbackError
from feedback.partitions import PartitionId
from persistence.sidecar.store import StoreTransaction
from worker.claims import Claim, Claimed, Ending
from worker.parking import ParkingLot


class Transactions(Protocol):
    """Where a batch is committed: the one part of a `SidecarStore` that deciding takes."""

    def transaction(self, epochs: Mapping[PartitionId, int]) -> AbstractContextManager[StoreTransaction]:
        """As `SidecarStore.transaction`."""
        ...


class Held(Protocol):
    """What a worker holds right now. Changed by its loop, and only looked at by others."""

    @property
    def owned(self) -> Mapping[PartitionId, object]:
        """Its partitions; a new object for each time that one was taken over."""
        ...

    @property
    def parking(self) -> Mapping[PartitionId, ParkingLot]:
        """Commands that wait for another try."""
        ...


class Meter:
    """Measures nothing: what a worker has whose metrics are off. Called a few times a batch, never per command."""

    def turn(self) -> None:
        """The loop begins a turn."""

    def serves(self, held: Held) -> None:
        """A loop begins, for one generation; `held` changes from then on."""

    def looked_after(self) -> None:
        """Partitions may have changed hands."""

    def processed(
        self, ended: Sequence[tuple[Claimed, Ending]], deferred: Sequence[tuple[Claim, FeedbackError]]
    ) -> None:
        """A round is committed: what commands came to, and which have to wait, and why."""

    def acknowledged(self, claims: Sequence[Claimed]) -> None:
        """These, which were processed before, are told to whoever waits for them."""

    def fenced(self) -> None:
        """A commit was fenced off: others own some of its partitions."""

    def interrupted(self, error: Exception) -> None:
        """The server or the store is in the way of everything."""

    def timed_barrier(self, barrier: DurabilityBarrier) -> DurabilityBarrier:
        """The barrier to use in place of this one."""
        return barrier

    def timed_commits(self, store: Transactions) -> Transactions:
        """What to commit by in place of this store."""
        return store
