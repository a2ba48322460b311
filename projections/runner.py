"""The follower: reads the event streams from the checkpoints on, folds, and stores views and checkpoints together."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from threading import Event as StopEvent

from redis import Redis

from feedback import keys
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import SettingsInvalid
from feedback.event_streams import Row
from feedback.events import Event
from feedback.partitions import PartitionId, Topology
from persistence.sidecar.store import SidecarStore
from projections.cache import Advance, ListCache, drop_foreign
from projections.gathering import Bogus, Gathered, Lost, Room, gather, last_sequences, read_streams
from projections.lease import FollowerLease
from projections.meter import Meter
from projections.patience import run_patiently
from projections.topology import check_topology, read_deployment, read_topology
from projections.views import Views

_log = logging.getLogger(__name__)

_BLOCK_S = 0.5
_LOOK_EVERY_S = 2.0
"""How often the follower compares itself with Redis and the store, whatever the streams bring."""
_PACE_S = 0.02
"""A round takes this long at least, so that events which come one by one are applied some at a time: a Session's list
is written once for all of them, and while nobody waits on the streams, acknowledging costs the server a third less. No
list is older for it (`projections.answers`)."""
_OFF = Meter()
_SESSIONS_AT_ONCE = 64
"""Lists that are held at the same time, while events are applied to them."""


class Follower:
    """Keeps the cached lists of one deployment up to date. For one thread; any number may run, on any machine."""

    def __init__(
        self, redis: Redis, store: SidecarStore, *, lease: FollowerLease | None = None, meter: Meter = _OFF
    ) -> None:
        """`redis` is used by this follower alone; its owner closes it. Without a lease it works beside any other."""
        self._redis = redis
        self._lease = lease
        self._meter = meter
        self._store = store
        self._cache = ListCache(redis)
        self._views = Views(self._cache, store)
        self._topology: Topology | None = None
        self._positions: dict[PartitionId, int] = {}
        """Where this follower is; empty: to be loaded. The checkpoints' copy, compared at each store."""
        self._next_look = 0.0
        self._hurries = False

    def run(self, stop: StopEvent) -> None:
        """Follow until `stop` is set.

        Raises:
            SettingsInvalid: Redis and the store belong to different deployments.
            RedisError: one that does not pass by itself.
        """
        lease = self._lease
        pause_s = _BLOCK_S if lease is None else min(_BLOCK_S, lease.pause_s)

        def step() -> None:
            follows = lease is None or lease.holds()
            self._meter.follows(follows)
            if not follows:
                self._stand_by()
                stop.wait(pause_s)
            elif not self.step(int(1000 * pause_s)):
                stop.wait(pause_s)

        try:
            run_patiently("follower", self._redis, stop, step, self._recover, meter=self._meter)
        finally:
            if lease is not None:
                lease.leave()

    def step(self, block_ms: int) -> bool:
        """One round, waiting at most `block_ms` for events. False while there is no topology to follow.

        Raises:
            SettingsInvalid, RedisError: as `run`.
            StoreUnavailable: the store could not be read.
        """
        if not self._positions:
            return self._load()
        room = self._room()
        rows = read_streams(self._redis, self._positions, room=room, block_ms=1 if self._hurries else block_ms)
        began = time.monotonic()
        self._hurries = False
        look = time.monotonic() >= self._next_look
        if look:
            self._cache.renew()
            self._next_look = time.monotonic() + _LOOK_EVERY_S
        if look or not rows:
            behind = self._behind()
            # What the streams lack is in the store, maybe more of it than one round takes.
            self._hurries = bool(behind)
            rows = behind | rows
        if rows and self._positions:
            self._advance(rows, room)
            time.sleep(max(0.0, began + _PACE_S - time.monotonic()))
        return True

    def _stand_by(self) -> None:
        """Know nothing that will be old when this follower's turn comes, and refuse early what it could not follow."""
        self._positions = {}
        self._current_topology()

    def _room(self) -> Room:
        assert self._topology is not None, "whoever has positions has read one"
        return Room.of_round(len(self._positions), self._topology.max_note_bytes)

    def _recover(self) -> None:
        """Trust nothing that was known of Redis before a failure."""
        streams = {keys.events(partition): b"stream" for partition in self._positions}
        checkpoints = {keys.checkpoint(partition.generation): b"hash" for partition in self._positions}
        self._positions = {}
        if self._lease is not None:
            self._lease.look_again()
        drop_foreign(self._redis, streams | checkpoints | {keys.LIST_ERA: b"string"})

    def _load(self) -> bool:
        """Find what to follow, and from where."""
        topology = self._current_topology()
        if topology is None:
            return False
        self._cache.renew()
        partitions = self._followed(topology)
        generation = partitions[0].generation
        known = self._cache.checkpoints(generation)
        heads = self._store.heads(partitions)
        positions = {partition: known.get(partition.number, 0) for partition in partitions}
        if any(
            positions[partition] > head or (head > 0 and partition.number not in known)
            for partition, head in heads.items()
        ):
            _log.warning("checkpoints lost or ahead of the store generation=%d", generation)
            self._start_anew(positions)
            return True
        if self._begin(partitions, known):
            self._positions = positions
            _log.info("following generation=%d partitions=%d", generation, len(partitions))
        return True

    def _current_topology(self) -> Topology | None:
        """What stands in Redis, or the last known while Redis has forgotten it."""
        topology = read_topology(self._redis)
        if topology is None or topology == self._topology:
            return self._topology
        try:
            check_topology(topology, read_deployment(self._redis), self._store.topology())
        except SettingsInvalid as error:
            if self._topology is None:
                raise
            _log.error("topology ignored reason=%s", error)
            return self._topology
        self._topology = topology
        return topology

    def _followed(self, topology: Topology) -> tuple[PartitionId, ...]:
        """The partitions to follow: the last generation's until they are drained, then the current one's.

        No partition is claimed before the old generation's queues are empty (DESIGN, "Queue topology"), so the
        first commit of the current generation says that the heads of the old one are final.
        """
        current = topology.all_partitions()
        previous = topology.generation - 1
        known = self._cache.checkpoints(previous)
        if not known:
            return current
        begun = any(self._store.heads(current).values())
        old = tuple(PartitionId(previous, number) for number in sorted(known))
        drained = all(known[partition.number] >= head for partition, head in self._store.heads(old).items())
        # With checkpoints of its own, the new generation is followed from its first event on.
        if begun and drained and self._begin(current, self._cache.checkpoints(topology.generation)):
            self._cache.forget_checkpoints(previous)
            return current
        return old

    def _begin(self, partitions: Sequence[PartitionId], known: Mapping[int, int]) -> bool:
        """Give each partition its checkpoint. They also tell the next generation what this one consisted of."""
        missing = [Advance(partition, 0, 0) for partition in partitions if partition.number not in known]
        return not missing or self._cache.store(self._cache.read(()).era, (), missing)

    def _behind(self) -> dict[PartitionId, list[Row]]:
        """Partitions whose store is not where this follower is; nothing, and no positions, if Redis has changed."""
        topology = self._current_topology()
        partitions = tuple(self._positions)
        known = self._cache.checkpoints(partitions[0].generation)
        if any(known.get(partition.number) != position for partition, position in self._positions.items()) or (
            topology is not None and self._followed(topology) != partitions
        ):
            self._positions = {}
            return {}
        heads = self._store.heads(partitions)
        return {partition: [] for partition, position in self._positions.items() if heads[partition] != position}

    def _advance(self, rows: Mapping[PartitionId, Sequence[Row]], room: Room) -> None:
        gathered: dict[PartitionId, Gathered] = {}
        for partition, entries in rows.items():
            match gather(partition, self._positions[partition], entries, self._store, room):
                case Gathered() as found:
                    gathered[partition] = found
                case Bogus():
                    _log.warning("stream of events that were never committed dropped partition=%s", partition)
                    self._redis.execute_command("DEL", keys.events(partition))
                case Lost():
                    _log.warning("events lost, all cached lists are made anew partition=%s", partition)
                    self._start_anew(self._positions)
                    return
        advances = [
            Advance(partition, self._positions[partition], found.reached) for partition, found in gathered.items()
        ]
        if self._apply((event for found in gathered.values() for event in found.events), advances):
            reach(CrashPoint.AFTER_CHECKPOINT)
            self._meter.projected(
                sum(advance.reached - advance.expected for advance in advances),
                (event for found in gathered.values() for event in found.events),
            )
            self._positions |= {partition: found.reached for partition, found in gathered.items()}
        else:
            _log.info("another projector was faster, or the lists are being made anew: reading the checkpoints again")
            self._positions = {}

    def _apply(self, events: Iterable[Event], advances: Sequence[Advance]) -> bool:
        """Store what the events make of the lists, some at a time; the checkpoints move with the last of them."""
        by_session: dict[str, list[Event]] = {}
        for event in events:
            by_session.setdefault(event.session_id, []).append(event)
        waiting = iter(by_session.items())
        part = dict(islice(waiting, _SESSIONS_AT_ONCE))
        while True:
            changed = self._views.after(part)
            part = dict(islice(waiting, _SESSIONS_AT_ONCE))
            if not part:
                reach(CrashPoint.BEFORE_CHECKPOINT)
                return self._cache.store(changed.era, changed.views, advances, noted=changed.noted)
            self._cache.store(changed.era, changed.views, noted=changed.noted)

    def _start_anew(self, positions: Mapping[PartitionId, int]) -> None:
        """Forget all cached lists, and streams that are past the store, and go on from its heads."""
        self._positions = dict(positions)  # of which streams something may be wrong, if this fails
        published = last_sequences(self._redis, tuple(positions))
        # Heads next: what is published is committed. And before the era: what is cached in the new one was read later,
        # so it holds everything up to them.
        heads = self._store.heads(tuple(positions))
        if ahead := [partition for partition, sequence in published.items() if sequence > heads[partition]]:
            _log.warning("streams of commits that the store has lost dropped count=%d", len(ahead))
            self._redis.execute_command("DEL", *map(keys.events, ahead))
        era = self._cache.invalidate()
        self._meter.began_anew()
        advances = [Advance(partition, position, heads[partition]) for partition, position in positions.items()]
        self._positions = dict(heads) if self._cache.store(era, (), advances) else {}
