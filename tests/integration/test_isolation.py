"""A Session that has to wait holds nobody else up, however many commands of it are waiting."""

import threading
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, LiveSessions, Put, SessionIdentity, keys
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import partition_of

pytestmark = pytest.mark.server


def test_thousands_of_commands_that_wait_do_not_stop_the_partition(
    valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """More than a few batches of one Session, whose owner does not flush: another one of its partition is served."""
    settings = settings_for(valkey_url, tmp_path, partitions=1, flush_timeout=60, batch_size=64)
    for session_id in ("stuck", "free"):
        write_session(settings, session_id, "m1")
    flush = threading.Event()
    stuck = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    with (
        serving(settings, projector=False),
        LiveSessions.from_url(valkey_url) as live,
        FeedbackClient.from_url(valkey_url) as client,
        live.register("stuck", stuck, lambda: flush.wait(60) and None),
    ):
        try:
            tickets = client.submit_many([Put("stuck", "m1", "positive") for _ in range(2000)])
            assert client.put("free", "m1", "positive").ok
            claimed = keys.claimed(partition_of(settings, "stuck"))
            wait_until(lambda: redis_client.llen(claimed) == len(tickets), "all of them are parked")
            assert client.put("free", "m1", "positive").ok is False
        finally:
            flush.set()
        assert [ticket.result().ok for ticket in tickets] == [True] + [False] * (len(tickets) - 1)
