"""One who takes turns on partitions, with workers and with others of its kind: its session in Redis, and its leases."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import takewhile
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.connection import BLOCK_S
from feedback.errors import QueueUnavailable
from feedback.partitions import PartitionId, Topology
from worker.core.shares import SINGLE_PREFIX, Liveness
from worker.leases import LeaseTable, View

logger = logging.getLogger(__name__)

_BEATS_PER_TTL = 5


class TurnTaker:
    """Lives while the block lasts: a thread sends its heartbeats, whatever is done meanwhile.

    As with a worker, what it holds is taken over when it falls silent.
    """

    def __init__(self, redis: Redis, worker_id: str, topology: Topology, ttl_s: float) -> None:
        """`worker_id` begins with `SINGLE_PREFIX`: no share of the partitions is due to it."""
        self._redis = redis
        self._me = worker_id
        self._table = LeaseTable(redis, worker_id, topology, ttl_s)
        self._beat_s = min(BLOCK_S, ttl_s / _BEATS_PER_TTL)
        self._liveness = Liveness(ttl_s)
        self._alive: frozenset[str] = frozenset()
        self._wanted: tuple[PartitionId, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="turn-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give back what is held. Where the server cannot be told, it all runs out by itself."""
        self._over.set()
        self._thread.join()
        try:
            self._release()
            self._table.leave()
        except RedisError as trouble:
            logger.warning("partitions were not given back: %s", trouble)

    def sees_workers(self) -> bool:
        """Whether a worker was alive at the last look around."""
        return any(not worker.startswith(SINGLE_PREFIX) for worker in self._alive)

    def seize(self, partitions: Iterable[PartitionId], deadline: float) -> None:
        """Take the leases of these partitions: from workers at once, from others who take turns when those have had
        theirs. While one is waited for, the others are held for a moment only, then left to whoever serves them.

        Raises:
            QueueUnavailable: not until `deadline` (monotonic seconds).
            RedisError
        """
        self._wanted = tuple(sorted(partitions))
        while (busy := self._try_to_seize(deadline)) is not None:
            self._release()
            self._wait(busy, deadline)
            while self._is_in_turn(self._look(), busy):
                self._wait(busy, deadline)

    def _try_to_seize(self, deadline: float) -> PartitionId | None:
        """Take all that is wanted; or say for which one it was waited in vain, though others are held."""
        left: Sequence[PartitionId] = self._wanted
        patient_until = time.monotonic() + self._beat_s
        while True:
            view = self._look()
            # In ascending order, as everybody: of two that want the same ones, one gets them all.
            taken = self._table.seize({one.number: view.owners.get(one.number) for one in self._free(view, left)})
            left = [partition for partition in left if partition.number not in taken]
            if not left:
                return None
            now = time.monotonic()
            if len(left) == len(self._wanted):
                patient_until = now + self._beat_s
            elif now > patient_until:
                return left[0]
            self._wait(left[0], deadline)

    def _free(self, view: View, left: Iterable[PartitionId]) -> Iterable[PartitionId]:
        """Those up to the first that has to be waited for."""
        return takewhile(lambda partition: not self._is_in_turn(view, partition), left)

    def _is_in_turn(self, view: View, partition: PartitionId) -> bool:
        """Whether it is another one of its kind that is alive: it will not be long."""
        owner = view.owners.get(partition.number)
        return owner is not None and owner != self._me and owner.startswith(SINGLE_PREFIX) and owner in self._alive

    def _wait(self, busy: PartitionId, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise QueueUnavailable(f"partition {busy} is busy with others who take turns; try again")
        # Whoever releases a partition or ends a session rings all others.
        self._redis.blpop([keys.wake(self._me)], timeout=self._beat_s)

    def _release(self) -> None:
        self._table.release([partition.number for partition in self._wanted])

    def _look(self) -> View:
        view = self._table.heartbeat(time.monotonic_ns(), ())
        self._alive = self._liveness.observe(view.beats, time.monotonic())
        return view

    def _keep_alive(self) -> None:
        while not self._over.wait(self._beat_s):
            try:
                self._table.heartbeat(time.monotonic_ns(), ())
            except RedisError as error:
                logger.warning("heartbeat failed: %s", error)
