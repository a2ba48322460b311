"""Every key that the system leaves in Redis has the life that `feedback/keys.py` gives it."""

import re
from pathlib import Path

import pytest
from redis import Redis

from feedback import CommandExpired, FeedbackClient, LiveSessions, SessionIdentity, keys
from feedback.calls import wall_clock_ms
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session

pytestmark = pytest.mark.server

LASTING = (
    re.escape(keys.TOPOLOGY),
    re.escape(keys.LIST_ERA),
    re.escape(keys.checkpoint(1)),
    r"feedback:events:1-\d+",
    # RQ's own: the set of queues, and registries that lose what is past its time with each batch.
    re.escape(keys.RQ_QUEUES),
    r"rq:(finished|failed):feedback-1-\d+",
)
WHILE_SERVED = (*LASTING, re.escape(keys.WORKERS), re.escape(keys.owners(1)), r"rq:workers(:feedback-1-\d+)?")


def strays(redis: Redis, expected: tuple[str, ...]) -> list[str]:
    """Keys that would stay for ever, and of which nothing says so."""
    allowed = re.compile("|".join(expected))
    names = [key.decode() for key in redis.scan_iter() if redis.ttl(key) == -1]
    return [name for name in names if not allowed.fullmatch(name)]


def test_what_no_table_lets_stay_expires(valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    """After answers, refusals, failures, lists and flushes; while workers and hosts live, and when they are gone."""
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", "m1", "m2")
    identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    with (
        serving(settings, workers=2),
        FeedbackClient.from_url(valkey_url) as client,
        LiveSessions.from_url(valkey_url) as live,
        live.register("s", identity, lambda: None),
    ):
        assert client.put("s", "m1", "positive").ok
        assert not client.put("s", "m1", "positive").ok
        assert client.delete("s", "m2", if_version=None).ok
        assert client.list("s", at_least=1).ok
        with pytest.raises(CommandExpired):
            client.put("s", "m2", "positive", expires_at=wall_clock_ms() - 1)
        assert strays(redis_client, WHILE_SERVED) == []
    assert not redis_client.exists(keys.WORKERS, keys.owners(1))
    wait_until(lambda: strays(redis_client, LASTING) == [], "only what may stay is left")
