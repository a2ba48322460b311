"""What was being published when somebody ended: who lives is told from who is dead, and each death counts once."""

import pytest
from redis import Redis

from feedback import keys
from feedback.partitions import PartitionId
from worker.unpublished import Attempt, Publication

pytestmark = pytest.mark.server

PARTITION = PartitionId(1, 3)
BEAT = b"17"


def begin(redis: Redis, worker: str, beat: bytes = b"") -> Attempt | None:
    """What a worker is told that begins to publish; it lives on with a beat, and is dead without one."""
    if beat:
        redis.set(keys.worker_session(worker), beat, px=60_000)
    return Publication(redis, PARTITION, worker).begin()


def test_who_lives_had_trouble_and_who_is_dead_ended_over_it(redis_client: Redis) -> None:
    """Also whoever begins after somebody who lives: all events are published together, and that may be its end."""
    assert begin(redis_client, "first", BEAT) is None
    assert begin(redis_client, "first") is None, "once more, after its own trouble"
    assert begin(redis_client, "second") is None
    assert begin(redis_client, "third") == Attempt(0, 1)


def test_the_deaths_over_one_event_are_those_of_who_published_it(redis_client: Redis) -> None:
    """Somebody who lives adds none, nor does one that ended before it got to that event."""
    publication = Publication(redis_client, PARTITION, "first")
    publication.note(Attempt(7, 1))
    redis_client.set(keys.worker_session("first"), BEAT, px=60_000)
    assert begin(redis_client, "second") == Attempt(7, 1)
    redis_client.delete(keys.worker_session("first"))
    assert begin(redis_client, "third") == Attempt(7, 2)
    assert begin(redis_client, "fourth") == Attempt(7, 2)


def test_what_is_no_beat_keeps_nobody_alive(redis_client: Redis) -> None:
    """Nor does it for the other workers, who take the partition over: a key of another type, text, nothing."""
    session = keys.worker_session("first")
    assert begin(redis_client, "first") is None
    for make in (
        lambda: redis_client.rpush(session, BEAT),
        lambda: redis_client.hset(session, "beat", BEAT),
        lambda: redis_client.set(session, "a beat"),
        lambda: redis_client.set(session, ""),
    ):
        redis_client.delete(session)
        make()
        assert begin(redis_client, "second") == Attempt(0, 1)
