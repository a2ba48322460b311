"""What one subscriber is sent, as server-sent events (WHATWG HTML, section 9.2): what it missed, then what comes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from time import monotonic

import msgspec
from redis import asyncio as aio
from redis.exceptions import RedisError

from feedback.partitions import PartitionId
from gateway.live.hub import EventHub, delivery_of, session_of
from gateway.live.marks import Mark, mark_of_all, mark_of_one, parse_mark
from gateway.live.streams import last_sequences, read_range
from gateway.live.subscriptions import Delivery, Gap, Reason, Subscription

HEARTBEAT_S = 15.0
"""Seconds after which something is sent, so that proxies keep the connection and a dead reader is noticed."""

MOST_SEARCHED = 10_000
"""Events of a partition among which one Session's are looked for. To load the Session anew costs less than more."""

_MARK_EVERY_S = 1.0
_PAGE = 128
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": nothing new\n\n"
_GONE = b"event: resume\ndata: {}\n\n"
"""Sent to a subscriber that does not keep up: come back, with the last id."""


class _Missed(Exception):
    """What the subscriber has not seen is no longer there."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Feed:
    """One subscriber's stream; iterate over it once. `session_id` None: everybody's events."""

    def __init__(
        self,
        hub: EventHub,
        redis: aio.Redis,
        session_id: str | None,
        last_event_id: str | None,
        *,
        recheck: Callable[[], Awaitable[bool]],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`recheck` is asked every now and then whether the subscriber may still listen."""
        self._hub = hub
        self._redis = redis
        self._session_id = session_id
        self._last_event_id = last_event_id
        self._recheck = recheck
        self._heartbeat_s = heartbeat_s
        self._subscription = Subscription(session_id)
        self._seen: dict[PartitionId, int] = {}
        self._revision: int | None = None
        self._searched = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Pieces of the stream, as they come, until the hub closes, the subscriber may no longer, or is too slow."""
        yield _RETRY
        with self._hub.listening():
            while not await self._hub.is_ready(self._heartbeat_s):
                if not await self._recheck():
                    return
                yield _HEARTBEAT
            try:
                for part in (self._beginning, self._live):
                    if self._is_over():
                        return
                    async for chunk in part():
                        yield chunk
                        if self._is_over():
                            return
            finally:
                self._hub.remove(self._subscription)

    def _is_over(self) -> bool:
        return self._hub.is_closing

    async def _beginning(self) -> AsyncGenerator[bytes, None]:
        """What was missed since the last event that the subscriber saw; ends with the subscription in the hub."""
        try:
            mark = self._mark()
            if mark is not None:
                async for chunk in self._former(mark):
                    yield chunk
                self._seen = dict(mark.sequences)
                while (behind := self._behind()) is not None:
                    async for chunk in self._replayed(*behind):
                        yield chunk
            # Nothing is awaited between the last look and this, so nothing is missed and nothing comes twice.
            self._hub.add(self._subscription)
        except (_Missed, RedisError) as error:
            self._hub.add(self._subscription)
            yield self._reload(error.reason if isinstance(error, _Missed) else "unknown")
        yield self._marked(b"")

    def _mark(self) -> Mark | None:
        """Where to go on; None to begin now. Raises `_Missed` when that is nowhere."""
        if self._last_event_id is None:
            return None
        mark = parse_mark(self._last_event_id)
        current = self._hub.followed.current.generation
        if mark is None or mark.of_all != (self._session_id is None) or not 0 <= current - mark.generation <= 1:
            raise _Missed("unknown")
        expected = {p for p in self._hub.partitions_of(self._session_id) if p.generation == mark.generation}
        if expected and mark.sequences.keys() != expected:
            raise _Missed("unknown")
        if any(sequence > (self._hub.position(p) or 0) for p, sequence in mark.sequences.items() if p in expected):
            raise _Missed("lost")
        return mark

    async def _former(self, mark: Mark) -> AsyncGenerator[bytes, None]:
        """The end of a generation that is worked off, and followed no more."""
        for partition, sequence in mark.sequences.items():
            if self._hub.position(partition) is None:
                last = (await last_sequences(self._redis, [partition]))[partition]
                async for chunk in self._replayed(partition, sequence, last):
                    yield chunk

    def _behind(self) -> tuple[PartitionId, int, int] | None:
        """A partition whose events the subscriber has not all seen, with what it has seen and what there is."""
        for partition in self._hub.partitions_of(self._session_id):
            # Of a generation that is new to the subscriber, it has seen nothing.
            seen, position = self._seen.get(partition, 0), self._hub.position(partition) or 0
            if seen < position:
                return partition, seen, position
        return None

    async def _replayed(self, partition: PartitionId, after: int, upto: int) -> AsyncGenerator[bytes, None]:
        """The subscriber's events among these sequences, from the stream. Raises `_Missed` where one is not there."""
        if after > upto:
            raise _Missed("lost")
        self._searched += upto - after
        if self._session_id is not None and self._searched > MOST_SEARCHED:
            raise _Missed("too-many")
        while after < upto:
            async with self._hub.catching_up:
                rows = await read_range(self._redis, partition, after, upto, _PAGE)
            if not rows:
                raise _Missed("trimmed")
            for row in rows:
                if row.sequence != after + 1:
                    raise _Missed("trimmed")
                session_id = session_of(row)
                if session_id is None or self._session_id in (None, session_id):
                    delivery = delivery_of(partition, row)
                    if delivery is None:
                        raise _Missed("unreadable")
                    for chunk in self._sent(delivery):
                        yield chunk
                after = row.sequence
            self._seen[partition] = after

    async def _live(self) -> AsyncGenerator[bytes, None]:
        """What comes, with a heartbeat in between."""
        recheck_at = monotonic() + self._heartbeat_s
        mark_at = monotonic() + _MARK_EVERY_S
        while not self._is_over():
            item = await self._subscription.take(self._heartbeat_s)
            if self._subscription.is_overrun:
                yield _GONE
                return
            match item:
                case Delivery():
                    for chunk in self._sent(item):
                        yield chunk
                case Gap():
                    yield self._reload(item.reason)
                    yield self._marked(b"")
                case None if self._subscription.is_closed:
                    return
                case None:
                    yield self._marked(_HEARTBEAT)
            if self._session_id is None and monotonic() >= mark_at and self._subscription.is_empty:
                yield self._marked(b"")
                mark_at = monotonic() + _MARK_EVERY_S
            if monotonic() >= recheck_at:
                if not await self._recheck():
                    return
                recheck_at = monotonic() + self._heartbeat_s

    def _sent(self, delivery: Delivery) -> Iterator[bytes]:
        """An event. Of one Session, its id says where the subscriber is, and its revision whether one is missing."""
        mark = b""
        if self._session_id is not None:
            mark = f"id: {mark_of_one(delivery.partition, delivery.sequence)}\n".encode()
            if self._revision is not None and delivery.before > self._revision:
                yield self._reload("lost")
            self._revision = max(self._revision or 0, delivery.revision)
        yield b"%sevent: %b\ndata: %b\n\n" % (mark, delivery.name.encode(), delivery.data)

    def _reload(self, reason: Reason) -> bytes:
        """Events will not come that the subscriber has not seen: load what they are about."""
        return b"event: reload\ndata: %b\n\n" % msgspec.json.encode({"reason": reason})

    def _marked(self, otherwise: bytes) -> bytes:
        """An id without an event: where the subscriber is, provided that nothing waits for it."""
        if not self._subscription.is_empty or self._subscription.is_overrun:
            return otherwise
        mark = self._here()
        return otherwise if mark is None else f"id: {mark}\n\n".encode()

    def _here(self) -> str | None:
        partitions = self._hub.partitions_of(self._session_id)
        oldest = partitions[0].generation
        sequences = [(p, self._hub.position(p) or 0) for p in partitions if p.generation == oldest]
        if self._session_id is not None:
            return mark_of_one(*sequences[0])
        return mark_of_all(oldest, [sequence for _, sequence in sequences])
