"""What the projection's tests share: a deployment with a miniature worker, and parts running in threads."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Protocol
from uuid import NAMESPACE_OID, uuid5

from redis import Redis

from feedback import keys
from feedback.errors import FeedbackError
from feedback.events import Event, FeedbackDeleted, FeedbackPut, FeedbackRejected, encode_event
from feedback.lists import CachedList
from feedback.model import Item, Rating, SessionIdentity
from feedback.partitions import PartitionId, Topology
from feedback.results import TargetNotFound
from persistence.sidecar.store import (
    Change,
    CommandRecord,
    DeleteItem,
    PutItem,
    SidecarStore,
    StartSession,
    StoredTopology,
)
from projections.cache import ListCache
from projections.fold import View
from projections.runner import Follower
from projections.views import load

LIFE = SessionIdentity(created_at=1000, cwd="/work")
NEXT_LIFE = SessionIdentity(created_at=2000, cwd="/work")
SESSIONS = tuple(f"session-{number}" for number in range(6))
_PATIENCE_S = 30.0


def wait_until(condition: Callable[[], bool], description: str) -> None:
    """Wait for a condition, however slow the machine is."""
    give_up = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"not within {_PATIENCE_S:g} s: {description}"
        threading.Event().wait(0.01)


class Part(Protocol):
    """A follower or a responder."""

    def run(self, stop: threading.Event) -> None: ...


@contextmanager
def running(*parts: Part) -> Iterator[None]:
    """Run parts in threads; what one raised is raised at the end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(part: Part) -> None:
        try:
            part.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), "a part does not stop"
        assert not failures, failures


class Deployment:
    """Store and server of one deployment, and what a worker would do to them."""

    def __init__(self, redis: Redis, store: SidecarStore, partitions: int = 2) -> None:
        self.redis = redis
        self.store = store
        self.identities: dict[str, SessionIdentity | FeedbackError] = {}
        self.use(Topology(generation=1, partitions=partitions, max_note_bytes=8192))

    def use(self, topology: Topology) -> None:
        """Set the topology up, in the store first, and own all its partitions."""
        self.topology = topology
        self.store.set_topology(
            StoredTopology(topology.generation, topology.partitions), replacing=self.store.topology()
        )
        self.announce()
        fences = self.store.acquire_fences(topology.all_partitions(), "test")
        self.epochs = {partition: fence.epoch for partition, fence in fences.items()}
        self.sequences = {partition: fence.sequence for partition, fence in fences.items()}

    def announce(self) -> None:
        """Write the topology to Redis."""
        topology = self.topology
        members = (topology.generation, topology.partitions, topology.max_note_bytes)
        names = ("generation", "partitions", "max_note_bytes")
        self.redis.execute_command("HSET", keys.TOPOLOGY, *chain.from_iterable(zip(names, members, strict=True)))

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        """What `identity` says is all there is to know here."""
        del session_id
        return None

    def identity(self, session_id: str) -> SessionIdentity | None:
        """The deployment knows the identities itself (`feedback.identities.SessionIdentities`)."""
        found = self.identities.get(session_id)
        if isinstance(found, FeedbackError):
            raise found
        return found

    def partition(self, session_id: str) -> PartitionId:
        return self.topology.partition_of(session_id)

    def put(
        self,
        session_id: str,
        message_id: str = "m1",
        rating: Rating = "positive",
        *,
        note: str | None = None,
        identity: SessionIdentity = LIFE,
        publish: bool = True,
    ) -> FeedbackPut:
        """Commit a put, and publish its event unless told otherwise."""
        self.identities[session_id] = identity
        row = self.store.stored_sessions([session_id]).get(session_id)
        revision = (row.revision if row else 0) + 1
        item = Item(
            message_id=message_id,
            rating=rating,
            note=note,
            version=str(uuid5(NAMESPACE_OID, f"{session_id}/{revision}")),
            created_at=1,
            updated_at=revision,
        )
        start = () if row and row.identity == identity else (StartSession(session_id, identity),)
        partition, sequence = self._next(session_id)
        event = FeedbackPut(
            event_id=f"{partition}-{sequence}",
            command_id=_command_id(partition, sequence),
            session_id=session_id,
            session=identity,
            revision=revision,
            message_id=message_id,
            occurred_at=1,
            partition=partition.number,
            epoch=self.epochs[partition],
            item=item,
        )
        self._commit(event, *start, PutItem(session_id, item, revision), publish=publish)
        return event

    def delete(self, session_id: str, message_id: str = "m1", *, publish: bool = True) -> FeedbackDeleted:
        """Commit a delete of an item that is there."""
        row = self.store.stored_sessions([session_id])[session_id]
        partition, sequence = self._next(session_id)
        event = FeedbackDeleted(
            event_id=f"{partition}-{sequence}",
            command_id=_command_id(partition, sequence),
            session_id=session_id,
            session=row.identity,
            revision=row.revision + 1,
            message_id=message_id,
            occurred_at=1,
            partition=partition.number,
            epoch=self.epochs[partition],
        )
        self._commit(event, DeleteItem(session_id, message_id, row.revision + 1), publish=publish)
        return event

    def reject(self, session_id: str) -> FeedbackRejected:
        """Record a rejection."""
        row = self.store.stored_sessions([session_id]).get(session_id)
        partition, sequence = self._next(session_id)
        event = FeedbackRejected(
            event_id=f"{partition}-{sequence}",
            command_id=_command_id(partition, sequence),
            session_id=session_id,
            session=LIFE,
            revision=row.revision if row else 0,
            message_id="nobody",
            occurred_at=1,
            partition=partition.number,
            epoch=self.epochs[partition],
            error=TargetNotFound(session_id=session_id, message_id="nobody"),
        )
        self._commit(event, publish=True)
        return event

    def publish(self, partition: PartitionId, sequence: int, data: bytes) -> None:
        self.redis.xadd(keys.events(partition), {"event": data}, id=f"{sequence}-0")

    def view(self, session_id: str) -> View:
        """The Session's list as the store has it."""
        return load(self.store, session_id)

    def cached(self, *session_ids: str) -> Mapping[str, CachedList]:
        """What a reader finds in the cache."""
        return ListCache(self.redis).read(session_ids).views

    def is_projected(self) -> bool:
        """Whether the checkpoints are at the store's heads."""
        generation = self.topology.generation
        known = ListCache(self.redis).checkpoints(generation)
        heads = self.store.heads(self.topology.all_partitions())
        return all(known.get(partition.number) == head for partition, head in heads.items())

    def settle(self) -> None:
        """Wait until everything committed is projected."""
        wait_until(self.is_projected, "checkpoints at the store's heads")

    def _next(self, session_id: str) -> tuple[PartitionId, int]:
        partition = self.partition(session_id)
        return partition, self.sequences[partition] + 1

    def _commit(self, event: Event, *changes: Change, publish: bool) -> None:
        partition, sequence = self._next(event.session_id)
        data = encode_event(event)
        record = CommandRecord(
            command_id=event.command_id,
            partition=partition,
            sequence=sequence,
            session_id=event.session_id,
            digest=b"",
            event=data,
            applied_at=1,
            expires_at=1,
        )
        with self.store.transaction({partition: self.epochs[partition]}) as transaction:
            transaction.apply(changes, (record,), {})
        self.sequences[partition] = sequence
        if publish:
            self.publish(partition, sequence, data)


def _command_id(partition: PartitionId, sequence: int) -> str:
    return str(uuid5(NAMESPACE_OID, f"{partition}-{sequence}"))


def settle(follower: Follower, deployment: Deployment) -> None:
    """Step until everything committed is projected, in a bounded number of rounds."""
    for _ in range(20):
        if deployment.is_projected():
            return
        follower.step(1)
    raise AssertionError("not projected after 20 rounds")


def assert_equals_store(deployment: Deployment, *session_ids: str) -> None:
    """What is cached of these Sessions is what the store has."""
    assert deployment.cached(*session_ids) == {session_id: deployment.view(session_id) for session_id in session_ids}


def stream_of(deployment: Deployment, session_id: str) -> str:
    return keys.events(deployment.partition(session_id))
