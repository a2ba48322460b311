"""Partitions taken from whoever serves them, for one transaction of somebody who is no worker."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from uuid import uuid4

from msgspec import Struct
from redis import Redis

from feedback.errors import QueueUnavailable
from feedback.noting import note_revisions
from feedback.partitions import PartitionId, Topology
from feedback.settings import Settings
from persistence.sidecar.store import CommandRecord, Fence, PartitionsFenced, SidecarStore
from worker import topology as topologies
from worker.core.retry import delay
from worker.core.shares import SINGLE_PREFIX
from worker.queue import ClaimQueue
from worker.takeover import take_over
from worker.turn_taker import TurnTaker

T = TypeVar("T")

_PATIENCE_TTLS = 4
_LONGEST_PAUSE_S = 1.0


def turn_deadline(settings: Settings) -> float:
    """Until when (monotonic seconds) somebody waits for a turn."""
    return time.monotonic() + _PATIENCE_TTLS * settings.lease_ttl


def until_unfenced(attempt: Callable[[], T], deadline: float) -> T:
    """Have a turn, and another one when somebody was faster: who is fenced off has done nothing.

    Raises:
        QueueUnavailable: somebody still was at `deadline` (monotonic seconds).
    """
    tries = 0
    while True:
        try:
            return attempt()
        except PartitionsFenced as fenced:
            if time.monotonic() > deadline:
                raise QueueUnavailable(f"{fenced}; try again") from fenced
        tries += 1
        time.sleep(delay(tries, random.random(), cap_s=_LONGEST_PAUSE_S))  # noqa: S311 - jitter, not a secret


def settled_topology(store: SidecarStore, settings: Settings) -> Topology:
    """How Sessions are spread now, and not for some of them only.

    Raises:
        QueueUnavailable: the number of partitions is being changed.
        SettingsInvalid, StoreUnavailable: the store was never set up, or cannot be read.
    """
    standing = topologies.current_standing(store, settings)
    if standing.former is not None:
        raise QueueUnavailable("the number of partitions is being changed; run this again when that is done")
    return standing.current


class Turn(Struct, frozen=True):
    """What was taken: the fences of these partitions, to commit under."""

    topology: Topology
    fences: Mapping[PartitionId, Fence]
    workers: bool
    """Whether a worker is alive, which wants its partitions back."""


class Turns:
    """Takes turns with the workers and with others of its kind.

    The fence makes it safe, as it does for a worker: once it has risen, nobody commits under an older one, and whoever
    is fenced off claims anew. The lease, where the server is known, spares the workers the attempt. Without a server
    the store alone is told: a worker notices at its next commit, and publishes the events then.
    """

    def __init__(self, store: SidecarStore, redis: Redis | None, settings: Settings) -> None:
        """`redis` is used by this object alone; its owner closes it."""
        self._store = store
        self._redis = redis
        self._settings = settings
        self._me = f"{SINGLE_PREFIX}{uuid4().hex}"

    def topology(self) -> Topology:
        """As `settled_topology`."""
        return settled_topology(self._store, self._settings)

    @contextmanager
    def take(self, session_ids: Collection[str]) -> Iterator[Turn]:
        """The partitions of these Sessions, until the block ends. Commands that were claimed of them are back on their
        queues, in order, and their event streams have all that was committed.

        Raises:
            PartitionsFenced: somebody was faster, or is so now; try again.
            QueueUnavailable: no turn could be had in time, or the number of partitions is being changed.
            RedisError, SettingsInvalid, StoreUnavailable
        """
        topology = self.topology()
        partitions = sorted({topology.partition_of(session_id) for session_id in session_ids})
        with ExitStack() as stack:
            workers = False
            if self._redis is None:
                fences = self._store.acquire_fences(partitions, self._me)
            else:
                taker = stack.enter_context(TurnTaker(self._redis, self._me, topology, self._settings.lease_ttl))
                taker.seize(partitions, turn_deadline(self._settings))
                workers = taker.sees_workers()
                queue = ClaimQueue(self._redis, self._me, self._settings)
                taken = take_over(queue, self._store, partitions, self._me)
                fences = {one.partition: one.fence for one in taken}
            if missing := [partition for partition in partitions if partition not in fences]:
                raise PartitionsFenced(missing)
            yield Turn(topology, fences, workers)

    def publish(self, records: Sequence[CommandRecord], revisions: Mapping[str, int]) -> None:
        """Tell of what was committed just now, at most a few MiB: the Sessions' revisions, then the events. Safe to
        repeat. After it, a list that anybody asks for is not older."""
        if self._redis is None or not records:
            return
        note_revisions(self._redis, revisions)
        queue = ClaimQueue(self._redis, self._me, self._settings)
        events: dict[PartitionId, list[tuple[int, bytes]]] = {}
        for record in records:
            events.setdefault(record.partition, []).append((record.sequence, record.event))
        for partition, of_one in events.items():
            queue.publish(partition, of_one)
