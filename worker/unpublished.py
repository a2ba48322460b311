"""Which events could not be published, and what is being published again: one hash in Redis per generation."""

import re

from msgspec import Struct
from redis import Redis
from redis.exceptions import ResponseError

from feedback import keys
from feedback.partitions import PartitionId

_NONE = 0
"""No event's sequence: those of a whole page are published together."""
_ATTEMPT = re.compile(r"([0-9]{1,18}):([0-9]{1,9}):(.*)", re.DOTALL)
_LEFT_OUT = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")


class Attempt(Struct, frozen=True):
    """What was being published, the event of this sequence alone or `_NONE`; how many processes ended over it."""

    sequence: int
    deaths: int


class Publication:
    """What is known of one partition's events that were not published (`keys.unpublished`)."""

    def __init__(self, redis: Redis, partition: PartitionId, worker_id: str) -> None:
        self._redis = redis
        self._key = keys.unpublished(partition.generation)
        self._number = partition.number
        self._worker_id = worker_id
        self.left_out: set[int] = set()
        """Sequences of events that are never published again."""

    def begin(self) -> Attempt | None:
        """Note that publishing begins, and look what was left out; what somebody ended over before, if anybody did."""
        fields = read_unpublished(self._redis, self._key)
        for match in map(_LEFT_OUT.fullmatch, fields):
            if match is not None and int(match[1]) == self._number:
                self.left_out.add(int(match[2]))
        last = _ATTEMPT.fullmatch(fields.get(str(self._number), ""))
        sequence, deaths = (_NONE, 0) if last is None else (int(last[1]), int(last[2]))
        if last is not None and not self._lives(last[3]):
            return Attempt(sequence, deaths + 1)
        # Whoever it was lives: it was the server that it had trouble with.
        if sequence != _NONE:
            return Attempt(sequence, deaths)
        self.note(Attempt(_NONE, 0))
        return None

    def note(self, attempt: Attempt) -> None:
        """Say what is published next: should this process end over it, the next one knows."""
        self._put(str(self._number), f"{attempt.sequence}:{attempt.deaths}:{self._worker_id}")

    def leave_out(self, sequence: int, reason: str) -> None:
        """Never publish this event again."""
        self.left_out.add(sequence)
        self._put(f"{self._number}-{sequence}", reason)

    def end(self) -> None:
        """All went well."""
        self._redis.execute_command("HDEL", self._key, self._number)

    def _lives(self, worker_id: str) -> bool:
        """Whether there is a beat of this worker, as `LeaseTable` sees one.

        One that ended is taken for alive at most once, while its session still stands: whoever goes on then notes its
        own id. Nobody begins under the id of somebody else, as each has a random part.
        """
        if worker_id == self._worker_id:
            return True
        (beat,) = self._redis.mget(keys.worker_session(worker_id))
        return isinstance(beat, bytes) and beat.isdigit()

    def _put(self, field: str, value: str) -> None:
        with self._redis.pipeline() as pipeline:
            pipeline.hset(self._key, field, value)
            pipeline.expire(self._key, keys.UNPUBLISHED_TTL_S)
            pipeline.execute()


def read_unpublished(redis: Redis, key: str) -> dict[str, str]:
    """The fields of such a hash; a key of another type in its place gives way."""
    try:
        stored: dict[bytes, bytes] = redis.execute_command("HGETALL", key)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        redis.execute_command("DEL", key)
        return {}
    return {field.decode(errors="replace"): value.decode(errors="replace") for field, value in stored.items()}


def left_out(redis: Redis, generation: int) -> dict[str, str]:
    """The events of a generation that their streams go without, by partition and sequence, and why.

    Raises:
        RedisError: the server cannot be asked.
    """
    fields = read_unpublished(redis, keys.unpublished(generation))
    return {f"{generation}-{field}": reason for field, reason in sorted(fields.items()) if _LEFT_OUT.fullmatch(field)}
