"""The one reader of a gateway process: it follows every partition's events, as long as anybody listens."""

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import msgspec
from msgspec import Struct
from redis import asyncio as aio
from redis.exceptions import RedisError

from feedback.decoding import decoded
from feedback.event_streams import Row
from feedback.events import Event, FeedbackDeleted, FeedbackPut, decode_event
from feedback.partitions import PartitionId
from gateway.live.streams import Followed, last_sequences, read_followed, read_new, read_range
from gateway.live.subscriptions import Delivery, Gap, Reason, Subscription

_BLOCK_MS = 1000
_LOOK_EVERY_S = 1.0
"""How often topology and streams are compared with what is followed."""
_LOST_AFTER_S = 10.0
"""A stream that ends before what was read, for so long, was not published again: its deployment is another one."""
_ROUND_EVENTS = 512
"""Bound on the events of one round, over all partitions: each may hold two notes."""
_LEAST_EACH = 4
_CATCHING_UP = 8
_FIRST_DELAY_S = 0.1
_LAST_DELAY_S = 2.0

_log = logging.getLogger(__name__)


class EventHub:
    """Reads each event once and gives it to every subscription that it concerns. For one event loop.

    Nothing is read while nobody listens. Redis may go away and come back: the sequences tell what was missed.
    """

    def __init__(self, redis: aio.Redis, *, lost_after_s: float = _LOST_AFTER_S) -> None:
        self._redis = redis
        self._lost_after_s = lost_after_s
        self._followed: Followed | None = None
        self._positions: dict[PartitionId, int] = {}
        self._behind_since: dict[PartitionId, float] = {}
        self._next_look = 0.0
        self._delay_s = 0.0
        self._listeners = 0
        self._ready = asyncio.Event()
        self._of_session: dict[str, set[Subscription]] = {}
        self._of_all: set[Subscription] = set()
        self._reader: asyncio.Task[None] | None = None
        self.catching_up = asyncio.Semaphore(_CATCHING_UP)
        """Held to read what a subscriber missed: all of them may come back at once."""
        self.is_closing = False

    @property
    def followed(self) -> Followed:
        """What is followed, once the hub is ready."""
        assert self._followed is not None, "the hub is ready"
        return self._followed

    def position(self, partition: PartitionId) -> int | None:
        """Up to which sequence the partition was read; None when it is not followed."""
        return self._positions.get(partition)

    def partitions_of(self, session_id: str | None) -> list[PartitionId]:
        """Where a Session's events come, or anybody's; oldest generation first."""
        return self.followed.partitions if session_id is None else self.followed.of_session(session_id)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Somebody listens, or is about to: the hub reads."""
        self._listeners += 1
        if self._reader is None and not self.is_closing:
            self._reader = asyncio.create_task(self._read(), name="events")
        try:
            yield
        finally:
            self._listeners -= 1

    async def is_ready(self, patience_s: float) -> bool:
        """Wait until it is known where the streams are, or the hub is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._ready.wait()
        return self._ready.is_set()

    def add(self, subscription: Subscription) -> None:
        """From the current positions on, the subscription gets what concerns it. It must be removed again."""
        self._group(subscription).add(subscription)
        if self.is_closing:
            subscription.close()

    def remove(self, subscription: Subscription) -> None:
        group = self._group(subscription)
        group.discard(subscription)
        if not group and subscription.session_id is not None:
            del self._of_session[subscription.session_id]

    def close(self) -> None:
        """All subscriptions end. Repeatable."""
        self.is_closing = True
        if self._reader is not None:
            self._reader.cancel()
        self._ready.set()
        for subscription in self._everybody():
            subscription.close()

    def _group(self, subscription: Subscription) -> set[Subscription]:
        if subscription.session_id is None:
            return self._of_all
        return self._of_session.setdefault(subscription.session_id, set())

    def _everybody(self) -> list[Subscription]:
        return [*self._of_all, *(one for group in self._of_session.values() for one in group)]

    async def _read(self) -> None:
        """Until nobody listens any more."""
        try:
            while self._listeners:
                await self._round_patiently()
        except Exception:  # noqa: BLE001  whatever it is, it must not end the events for good
            # A defect. Whoever listens comes back, which starts the reader anew.
            _log.exception("the reader of events broke")
            for subscription in self._everybody():
                subscription.close()
        finally:
            self._reader, self._next_look = None, 0.0
            if not self.is_closing:
                self._ready.clear()
                self._followed, self._positions, self._behind_since = None, {}, {}

    async def _round_patiently(self) -> None:
        try:
            await self._round()
            self._delay_s = 0.0
        except RedisError as error:
            if not self._delay_s:
                _log.warning("events cannot be read reason=%s", error)
            self._next_look = 0.0
            self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S) or _FIRST_DELAY_S
            await asyncio.sleep(self._delay_s)

    async def _round(self) -> None:
        if monotonic() >= self._next_look:
            await self._look()
            self._next_look = monotonic() + _LOOK_EVERY_S
        if not self._positions:
            await asyncio.sleep(_FIRST_DELAY_S)
            self._next_look = 0.0
            return
        count = max(_LEAST_EACH, _ROUND_EVENTS // len(self._positions))
        for partition, rows in await read_new(self._redis, self._positions, count=count, block_ms=_BLOCK_MS):
            for row in rows:
                self._pass_on(partition, row)

    async def _look(self) -> None:
        """Compare what is followed with the topology and with the streams."""
        found = await read_followed(self._redis)
        if found is None:
            return  # Redis has forgotten it, or nobody has set it up yet
        last = await last_sequences(self._redis, found.partitions)
        if self._followed is None or not _continues(self._followed, found):
            self._start_at(found, last)
        elif found != self._followed:
            await self._finish(set(self._positions).difference(found.partitions))
            # Whatever a new generation has already is still to be read: none of it was served before.
            self._positions = {partition: self._positions.get(partition, 0) for partition in found.partitions}
            self._followed = found
        self._find_lost(last)
        self._ready.set()

    async def _finish(self, partitions: Collection[PartitionId]) -> None:
        """Read to their ends what is worked off and will be followed no more."""
        for partition in sorted(partitions):
            while rows := await read_range(self._redis, partition, self._positions[partition], None, _ROUND_EVENTS):
                for row in rows:
                    self._pass_on(partition, row)

    def _start_at(self, found: Followed, last: dict[PartitionId, int]) -> None:
        had_another = self._followed is not None
        self._followed, self._positions, self._behind_since = found, last, {}
        if had_another:
            _log.warning("another deployment: subscribers have to load anew generation=%d", found.current.generation)
            for partition in found.partitions:
                self._tell_of_gap(partition, last[partition], "lost")

    def _find_lost(self, last: dict[PartitionId, int]) -> None:
        """Streams that end before what was read. A server that lost some gets them again, so wait for that first."""
        now = monotonic()
        behind = [partition for partition, sequence in last.items() if sequence < self._positions[partition]]
        self._behind_since = {partition: self._behind_since.get(partition, now) for partition in behind}
        for partition, since in list(self._behind_since.items()):
            if now - since >= self._lost_after_s:
                _log.warning("events taken back partition=%s sequence=%d", partition, last[partition])
                self._positions[partition] = last[partition]
                self._tell_of_gap(partition, last[partition], "lost")
                del self._behind_since[partition]

    def _pass_on(self, partition: PartitionId, row: Row) -> None:
        position = self._positions[partition]
        if row.sequence <= position:
            return
        if row.sequence > position + 1:
            self._tell_of_gap(partition, row.sequence - 1, "trimmed")
        self._positions[partition] = row.sequence
        session_id = session_of(row)
        concerned = (*self._of_session.get(session_id, ()), *self._of_all) if session_id is not None else ()
        if session_id is not None and not concerned:
            return
        delivery = delivery_of(partition, row)
        if delivery is None:
            self._tell_of_gap(partition, row.sequence, "unreadable")
            return
        for subscription in concerned:
            subscription.offer(delivery)

    def _tell_of_gap(self, partition: PartitionId, sequence: int, reason: Reason) -> None:
        gap = Gap(partition, sequence, reason)
        for subscription in self._everybody():
            if partition in self.partitions_of(subscription.session_id):
                subscription.offer(gap)


class _Head(Struct, frozen=True, rename="camel"):
    """All that has to be known of an event to see whom it concerns."""

    session_id: str


_heads = msgspec.msgpack.Decoder(_Head)


def session_of(row: Row) -> str | None:
    """Whose event an entry is, without reading the rest of it; None when it is no event."""
    try:
        return decoded(_heads, row.data).session_id
    except msgspec.MsgspecError:
        return None


def delivery_of(partition: PartitionId, row: Row) -> Delivery | None:
    """An entry as it is sent to subscribers; None when it is no event of its place."""
    try:
        event: Event = decode_event(row.data)
    except msgspec.MsgspecError:
        return None
    if event.event_id != f"{partition}-{row.sequence}":
        return None
    return Delivery(
        partition=partition,
        sequence=row.sequence,
        session_id=event.session_id,
        name=str(event.__struct_config__.tag),
        before=event.revision - isinstance(event, FeedbackPut | FeedbackDeleted),
        revision=event.revision,
        data=msgspec.json.encode(event),
    )


def _continues(followed: Followed, found: Followed) -> bool:
    """Whether `found` is the same deployment later: the same generation, or the next one of the current."""
    known = {topology.generation: topology.partitions for topology in followed.generations}
    current = followed.current.generation
    return current <= found.current.generation <= current + 1 and all(
        known.get(topology.generation, topology.partitions) == topology.partitions for topology in found.generations
    )
