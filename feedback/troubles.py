"""What keeps a process from doing its work right now, put where `feedback status` finds it.

One hash in Redis: who has trouble -> what it is. Each entry says until when it counts, so that the trouble of
a process which died with it is forgotten; the process renews it for as long as it lasts.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.errors import FeedbackError

_LONGEST_MESSAGE = 500
_RENEW_S = keys.TROUBLE_TTL_S / 6


class Trouble(Struct, frozen=True):
    """`code` is the failure's name (CONTRACT) or the exception's, `message` its sentence.

    `since` and `until` are milliseconds since the epoch: when it began, and up to when this entry counts.
    """

    code: str
    message: str
    since: int
    until: int


class TroubleReport:
    """One process's entry. `meet` and `end` may be called from any thread, `publish` from one.

    Reporting is a courtesy: no failure of it may disturb the work, so nothing here raises.
    """

    def __init__(self, redis: Redis, reporter: str) -> None:
        self._redis = redis
        self._reporter = reporter
        self._current: Trouble | None = None
        self._published: Trouble | None = None
        self._renew_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether something is in the way."""
        return self._current is not None

    def meet(self, error: Exception, message: str = "") -> None:
        """Something is in the way; `message` where the error's own sentence does not say it all."""
        code = error.code if isinstance(error, FeedbackError) else type(error).__name__
        text = (message or str(error))[:_LONGEST_MESSAGE]
        since = wall_clock_ms() if self._current is None else self._current.since
        self._current = Trouble(code, text, since, 0)

    def end(self) -> None:
        """All goes well again."""
        self._current = None

    def publish(self) -> None:
        """Make the entry say what is the case; no round trip when it does."""
        current = self._current
        if current == self._published and (current is None or time.monotonic() < self._renew_at):
            return
        with suppress(RedisError):
            if current is None:
                self._redis.hdel(keys.TROUBLES, self._reporter)
            else:
                self._put(current)
            self._published = current

    def withdraw(self) -> None:
        """This process ends, and its trouble with it."""
        self.end()
        self.publish()

    def _put(self, current: Trouble) -> None:
        if self._published is None:
            forgotten = [reporter for reporter, trouble in _entries(self._redis) if not _counts(trouble)]
            if forgotten:
                self._redis.hdel(keys.TROUBLES, *forgotten)
        entry = msgspec.structs.replace(current, until=wall_clock_ms() + 1000 * keys.TROUBLE_TTL_S)
        with self._redis.pipeline() as pipeline:
            pipeline.hset(keys.TROUBLES, self._reporter, msgspec.json.encode(entry))
            pipeline.expire(keys.TROUBLES, keys.TROUBLE_TTL_S)
            pipeline.execute()
        self._renew_at = time.monotonic() + _RENEW_S


def read_troubles(redis: Redis) -> dict[str, Trouble]:
    """Who has which trouble now, ordered by who. What is no entry counts as none.

    Raises:
        RedisError: the server cannot be asked.
    """
    return {
        reporter.decode(errors="replace"): trouble
        for reporter, trouble in sorted(_entries(redis), key=lambda entry: entry[0])
        if trouble is not None and _counts(trouble)
    }


def _entries(redis: Redis) -> Iterator[tuple[bytes, Trouble | None]]:
    try:
        found: Any = redis.execute_command("HGETALL", keys.TROUBLES)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        return
    for reporter, entry in found.items():
        try:
            yield reporter, msgspec.json.decode(entry, type=Trouble)
        except msgspec.MsgspecError:
            yield reporter, None


def _counts(trouble: Trouble | None) -> bool:
    return trouble is not None and trouble.until > wall_clock_ms()
