"""The engines of the sidecar store as the conformance suite opens them, and short ways to say what is written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from feedback.model import Item, Rating, SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar import SidecarStore, SqliteStore, open_store
from persistence.sidecar.store import Change, CommandRecord

if TYPE_CHECKING:
    from tests.postgres import Databases  # which the processes that only write into a file need not wait for

P0 = PartitionId(1, 0)
P1 = PartitionId(1, 1)
NEXT_GENERATION = PartitionId(2, 0)
FIRST_LIFE = SessionIdentity(created_at=1_700_000_000_000, cwd="/work")
SECOND_LIFE = SessionIdentity(created_at=1_700_000_000_001, cwd="/work")


class Engine(ABC):
    """One engine: makes empty stores, and closes them all in the end."""

    flaws: tuple[str, ...] = ()
    """What `health` finds wrong with a store of this suite although all is well with the engine."""

    def __init__(self) -> None:
        self._stores = ExitStack()

    def fresh(self) -> SidecarStore:
        """An empty store."""
        return self._stores.enter_context(self.opened())

    @abstractmethod
    def opened(self) -> AbstractContextManager[SidecarStore]:
        """An empty store that is gone at the end of the block."""

    @abstractmethod
    def url(self, store: SidecarStore) -> str:
        """Where another process finds the store."""

    def close(self) -> None:
        self._stores.close()


class SqliteFileEngine(Engine):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    @contextmanager
    def opened(self) -> Iterator[SidecarStore]:
        with closing(open_store(f"sqlite:///{self._directory / str(uuid4())}")) as store:
            yield store

    def url(self, store: SidecarStore) -> str:
        return f"sqlite:///{store.health().location}"


class SqliteMemoryEngine(SqliteFileEngine):
    @contextmanager
    def opened(self) -> Iterator[SidecarStore]:
        with closing(SqliteStore.in_memory()) as store:
            yield store


class PostgresEngine(Engine):
    flaws = (
        "fsync is off: a crash of the server loses ratings that were acknowledged; turn it on",
        "full_page_writes is off: a crash of the server may damage the store; turn it on",
    )

    def __init__(self, databases: "Databases") -> None:
        super().__init__()
        self._databases = databases
        self._urls: dict[str, str] = {}

    @contextmanager
    def opened(self) -> Iterator[SidecarStore]:
        with self._databases.one() as url, closing(open_store(url)) as store:
            self._urls[store.health().location] = url
            yield store

    def url(self, store: SidecarStore) -> str:
        return self._urls[store.health().location]


ENGINES: tuple[type[Engine], ...] = (SqliteFileEngine, SqliteMemoryEngine, PostgresEngine)


def item(message_id: str, *, rating: Rating = "positive", note: str | None = None, at: int = 1) -> Item:
    return Item(message_id=message_id, rating=rating, note=note, version=str(uuid4()), created_at=at, updated_at=at)


def record(
    sequence: int,
    *,
    partition: PartitionId = P0,
    session_id: str = "s",
    expires_at: int = 1_000,
    command_id: str | None = None,
) -> CommandRecord:
    return CommandRecord(
        command_id=command_id or str(uuid4()),
        partition=partition,
        sequence=sequence,
        session_id=session_id,
        digest=b"digest\0",
        event=b"event %d" % sequence,
        applied_at=500,
        expires_at=expires_at,
    )


def commit(
    store: SidecarStore,
    changes: Sequence[Change] = (),
    records: Sequence[CommandRecord] = (),
    deadlines: Mapping[str, int] | None = None,
    *,
    epochs: Mapping[PartitionId, int] | None = None,
) -> None:
    """One batch, in one transaction of these epochs."""
    with store.transaction(epochs or {}) as transaction:
        transaction.apply(changes, records, deadlines or {})


def message_ids(store: SidecarStore, session_id: str) -> list[str]:
    """What a list shows, in its order."""
    feedback = store.feedback(session_id)
    return [] if feedback is None else [stored.message_id for stored in feedback.items]
