"""What a subscriber has not been sent yet: bounded, for whoever is slow is told to come back."""

import asyncio
from collections import deque
from typing import Literal, TypeAlias

from msgspec import Struct

from feedback.partitions import PartitionId

MOST_WAITING = 256

Reason: TypeAlias = Literal["trimmed", "lost", "unreadable", "unknown", "too-many"]


class Delivery(Struct, frozen=True, kw_only=True):
    """One event: its place, the Session's id, its type, and its JSON, which all subscribers share.

    `revision` is the Session's after it, `before` the one that it follows.
    """

    partition: PartitionId
    sequence: int
    session_id: str
    name: str
    before: int
    revision: int
    data: bytes


class Gap(Struct, frozen=True):
    """Events up to this sequence of the partition will not come; what was seen has to be loaded anew."""

    partition: PartitionId
    sequence: int
    reason: Reason


Item: TypeAlias = Delivery | Gap


class Subscription:
    """One subscriber's queue. `session_id` None: everything. For one event loop."""

    def __init__(self, session_id: str | None, most: int = MOST_WAITING) -> None:
        self.session_id = session_id
        self.is_overrun = False
        """More came than it was taken from: what waited is gone, and nothing more will come."""
        self.is_closed = False
        self._most = most
        self._waiting: deque[Item] = deque()
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def offer(self, item: Item) -> None:
        """Add one for the subscriber to take."""
        if self.is_overrun:
            return
        self._waiting.append(item)
        if len(self._waiting) > self._most:
            self._waiting.clear()
            self.is_overrun = True
        self._changed.set()

    def close(self) -> None:
        """There will be no more."""
        self.is_closed = True
        self._changed.set()

    async def take(self, patience_s: float) -> Item | None:
        """The next one; None after `patience_s` seconds without one, or when none will come any more."""
        if not self._waiting and not (self.is_overrun or self.is_closed):
            self._changed.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait()
            except TimeoutError:
                return None
        return self._waiting.popleft() if self._waiting else None
