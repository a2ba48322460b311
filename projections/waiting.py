"""What waits in the partitions' queues, and since when: read off Redis, so it is right when no worker lives, too."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain, islice

from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.partitions import PartitionId
from feedback.scripting import Script

_waiting = Script("projections", "waiting", read_only=True)
_AT_ONCE = 256
"""Partitions of one request: no server is held up for longer than a millisecond or two."""


class Backlog(Struct, frozen=True):
    """One partition's commands: waiting, claimed by its owner (or set aside by it), and in RQ's failed registry.

    `oldest`: when the first of those that wait or are claimed was enqueued, by its host's clock, in milliseconds since
    the epoch; None when there are none, or it does not say.
    """

    waiting: int
    claimed: int
    failed: int
    oldest: int | None = None


def read_backlog(redis: Redis, partitions: Iterable[PartitionId]) -> dict[PartitionId, Backlog]:
    """Every partition's backlog, in one round trip for up to 256 of them.

    Raises:
        redis.exceptions.RedisError
    """
    asked = iter(partitions)
    found: dict[PartitionId, Backlog] = {}
    while some := tuple(islice(asked, _AT_ONCE)):
        names = chain.from_iterable(
            (keys.queue(one), keys.claimed(one), keys.aside(one), keys.failed_registry(one)) for one in some
        )
        for partition, reply in zip(some, _waiting(redis, tuple(names), (keys.RQ_JOB_PREFIX,)), strict=True):
            queued, claimed, aside, failed, *times = reply
            known = [at for text in times if (at := _milliseconds(text)) is not None]
            found[partition] = Backlog(queued, claimed + aside, failed, min(known, default=None))
    return found


def _milliseconds(text: bytes | None) -> int | None:
    """A time as RQ writes it; anybody may have written another thing in its place."""
    if text is None:
        return None
    try:
        return round(1000 * datetime.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None
