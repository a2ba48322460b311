"""The sidecar store's protocol: where feedback is the truth (DESIGN, "Sidecar store").

One engine is one implementation of `SidecarStore`; all of them pass `tests/conformance`.

A worker *gathers* with `StoreTransaction.load`, decides in its pure core, and writes once with
`StoreTransaction.apply`; the transaction is fenced by the epochs it was opened with. Each engine
can do each step in one round trip.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from msgspec import Struct

from feedback.errors import Fenced
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId


class PartitionsFenced(Fenced):
    """These partitions have a newer owner. The whole transaction was rolled back."""

    def __init__(self, partitions: Sequence[PartitionId]) -> None:
        super().__init__(f"another owner holds {', '.join(map(str, partitions))}")
        self.partitions = tuple(partitions)


class Fence(Struct, frozen=True):
    """What a new owner of a partition gets: its fencing token, and the last sequence that was committed (0: none)."""

    epoch: int
    sequence: int


class StoredSession(Struct, frozen=True):
    """A Session's row. `revision` grows by one with each material change and survives a change of identity."""

    identity: SessionIdentity
    revision: int


class CommandRecord(Struct, frozen=True, kw_only=True):
    """A command's outcome: its event (`feedback.events`, encoded), from which the answer follows.

    `sequence` is dense per partition, from 1. Times in milliseconds since the Unix epoch.

    That a command expired is recorded as well, so that a worker with an earlier clock does not apply it after all: a
    record without event, which stands in no partition's sequence (generation `EXPIRED`, any number).
    """

    command_id: str
    partition: PartitionId
    sequence: int
    session_id: str
    digest: bytes
    event: bytes
    applied_at: int
    expires_at: int

    @property
    def is_expired(self) -> bool:
        """Whether all that is recorded is that the command expired."""
        return self.partition.generation == EXPIRED


EXPIRED = 0
"""No generation: where the records of expired commands stand."""


class RecordedOutcome(Struct, frozen=True):
    """One outcome of a Session's history: its place, when it was applied (milliseconds), its event (encoded)."""

    partition: PartitionId
    sequence: int
    applied_at: int
    event: bytes

    @property
    def position(self) -> "HistoryPosition":
        """Where the history goes on behind it."""
        return self.partition.generation, self.partition.number, self.sequence


HistoryPosition: TypeAlias = tuple[int, int, int]
"""A place in a Session's history: generation, partition and sequence of an outcome."""

HISTORY_START: HistoryPosition = (0, 0, 0)
"""Before every outcome."""


class Snapshot(Struct, frozen=True):
    """What a batch needs to know; missing keys mean "not stored".

    An item is here whatever identity its Session's row has: comparing is the core's business.
    """

    records: Mapping[str, CommandRecord]
    sessions: Mapping[str, StoredSession]
    items: Mapping[tuple[str, str], Item]


class StartSession(Struct, frozen=True):
    """Make the Session's row, or replace one of another identity and drop its items."""

    session_id: str
    identity: SessionIdentity


class PutItem(Struct, frozen=True):
    """Write one item and the Session's new revision. A new item goes to the end, an existing one keeps its place."""

    session_id: str
    item: Item
    revision: int


class DeleteItem(Struct, frozen=True):
    """Remove one item and write the Session's new revision."""

    session_id: str
    message_id: str
    revision: int


Change: TypeAlias = StartSession | PutItem | DeleteItem


class SessionFeedback(Struct, frozen=True):
    """A Session's feedback at one revision, read in one snapshot; items in order of first creation."""

    session_id: str
    identity: SessionIdentity
    revision: int
    items: tuple[Item, ...]


class StoredTopology(Struct, frozen=True):
    """The number of partitions, and which generation of it.

    `former` is how many partitions the generation before had (0: there was none). Until it is `retired`, its
    queues are worked off, and nothing of the current generation is.

    `deployment` is a random number that the store got with its first topology; it tells two stores apart whose
    numbers are the same (0: set up before there was one).
    """

    generation: int
    partitions: int
    former: int = 0
    retired: bool = True
    deployment: int = 0


class StoreHealth(Struct, frozen=True):
    """What `doctor` reports: engine and version, where it lies, schema version, findings in words (empty: healthy)."""

    engine: str
    location: str
    schema_version: int
    sessions: int
    items: int
    commands: int
    findings: tuple[str, ...]


class StoreTransaction(Protocol):
    """One batch. Reads see what was committed before it; nothing is visible to others until it ends well."""

    def load(self, command_ids: Sequence[str], targets: Sequence[tuple[str, str]]) -> Snapshot:
        """Gather records, Session rows and items for these command ids and (session id, message id) pairs."""
        ...

    def apply(self, changes: Sequence[Change], records: Sequence[CommandRecord], deadlines: Mapping[str, int]) -> None:
        """Write changes in order, then the records, and advance each partition's sequence to its last record's.

        `deadlines` moves the `expires_at` of records that exist (command id -> milliseconds) later, never earlier.
        Records of expired commands are numbered by the engine, whatever their sequence says; the partition of their
        number must be one that the transaction was opened for.

        Raises:
            PartitionsFenced: the first record of a partition does not follow the last one that is stored: the store
                has lost commits since its owner took it over, or has another owner of the same epoch.
            ValueError: a later record does not follow the one before it, its partition is not one that
                the transaction was opened for, or its command id is recorded already; a change of a Session
                without a row. Let it out of the block, which then rolls back.
        """
        ...


class SidecarStore(Protocol):
    """All methods may be called from any thread; all may raise `StoreUnavailable`."""

    def retire(self, topology: StoredTopology) -> None:
        """Mark the former generation retired and fence its last owners off, in one transaction.

        Nothing happens when the stored topology is another one. Repeatable.
        """
        ...

    def topology(self) -> StoredTopology | None:
        """The deployment's topology, or None in a new store."""
        ...

    def set_topology(self, topology: StoredTopology, *, replacing: StoredTopology | None) -> bool:
        """Compare-and-set; False when the stored one is not `replacing` (None: nothing stored yet)."""
        ...

    def acquire_fences(self, partitions: Sequence[PartitionId], owner: str) -> dict[PartitionId, Fence]:
        """Raise each partition's epoch by one, durably, in one transaction; from then on older epochs are refused.

        What may have no owner now is left out of the answer: a retired generation, the current one while the
        former is not retired, one that is not this store's. So no Session ever has owners in two generations.
        """
        ...

    def transaction(self, epochs: Mapping[PartitionId, int]) -> AbstractContextManager[StoreTransaction]:
        """Open a fenced transaction: committed durably when the block ends, rolled back when it raises.

        It begins with its first `load` or `apply` at the latest: from there on nobody else writes about its partitions.

        Raises:
            PartitionsFenced: a stored epoch is not the given one; checked inside the transaction, so `load` and
                `apply` may raise it too.
            StoreUnavailable: nothing was committed, or, when the commit itself was interrupted, that cannot be known:
                the command records tell.
        """
        ...

    def heads(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """The last committed sequence of each partition (0: none)."""
        ...

    def outcomes(self, partition: PartitionId, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Recorded (sequence, event) pairs of a partition past `after`, ascending."""
        ...

    def history(self, session_id: str, after: HistoryPosition, limit: int) -> list[RecordedOutcome]:
        """Up to `limit` recorded outcomes of a Session past `after`, in commit order.

        Commit order is that of generation and sequence: a Session is in one partition of each generation.
        """
        ...

    def record(self, command_id: str) -> CommandRecord | None:
        """One command's record."""
        ...

    def recorded(self, command_ids: Sequence[str]) -> set[str]:
        """Those of these commands that have a record, of whatever outcome."""
        ...

    def feedback(self, session_id: str) -> SessionFeedback | None:
        """A Session's feedback, of whatever identity is stored."""
        ...

    def stored_sessions(self, session_ids: Sequence[str]) -> dict[str, StoredSession]:
        """The rows of these Sessions, those that exist."""
        ...

    def session_ids(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Up to `limit` Sessions in the order in which they were first stored, past the place `after` (0: from the
        first): (place, Session id) pairs, ascending. A Session keeps its place for ever."""
        ...

    def prune(self, *, expired_before: int, limit: int) -> int:
        """Forget up to `limit` command records whose `expires_at` is earlier; how many went."""
        ...

    def health(self) -> StoreHealth:
        """Check the store as far as is cheap (no full scan)."""
        ...

    def close(self) -> None:
        """Release files and connections of every thread."""
        ...
