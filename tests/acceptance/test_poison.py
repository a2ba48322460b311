"""A command that ends every worker that tries it: it is found out, fails visibly, and takes nobody with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from app.system import child_environ
from feedback import CommandFailed, FeedbackClient, LiveSessions, Put, SessionIdentity, keys
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.acceptance.command_line import feedback
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.integration.rq_jobs import events_of, partition_of, set_up
from tests.outcomes import is_idle, stored_events
from tests.poisoned import DEFECTS, POISON
from tests.processes import let_leases_run_out, program
from worker.claims import MOST_DEATHS

pytestmark = [pytest.mark.server, pytest.mark.process]

NEIGHBOURS = ("a", "b", "c")


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=2, lease_ttl=1.0)
    for session_id in NEIGHBOURS:
        write_session(settings, session_id, "m1", "m2", POISON)
    set_up(redis_client, settings)
    return settings


@pytest.fixture
def held_open(settings: Settings) -> Iterator[str]:
    """A Session whose owner flushes when it is asked, and not before."""
    identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    with (
        LogWriter(Path(settings.sessions), "live", created_at=CREATED_AT, cwd="/w") as log,
        LiveSessions.from_url(settings.redis_url) as live,
    ):

        def flush() -> int:
            if log.next_seq == 0:
                log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id=POISON))
            return log.next_seq

        with live.register("live", identity, flush):
            yield "live"


def run_until_idle(redis: Redis, settings: Settings, defect: str, logs: Path) -> int:
    """What a supervisor does; how many workers ended over it."""
    ends = 0
    while True:
        log = logs / "worker.log"
        worker = program("worker", "tests.poisoned", defect, "worker", log=log, environ=child_environ(settings))
        worker.start()
        try:
            wait_until(lambda w=worker: w.poll() is not None or is_idle(redis, settings), "it ends, or all is done")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            if worker.poll() is None:
                return ends
            let_leases_run_out(redis, worker)
        finally:
            worker.stop(settings.shutdown_grace)
        ends += 1
        assert ends < 10, "workers die for ever"


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_command_that_ends_every_worker_fails_and_no_other_does(
    redis_client: Redis, settings: Settings, held_open: str, tmp_path: Path, defect: str
) -> None:
    """Two workers end with a batch; then commands are tried alone, and few more end before it is given up."""
    culprit = held_open if defect == "flushed" else "b"
    requests = [Put(session_id, message_id, "positive") for session_id in NEIGHBOURS for message_id in ("m1", "m2")]
    requests.insert(3, Put(culprit, POISON, "positive"))
    with FeedbackClient.from_url(settings.redis_url) as client:
        tickets = client.submit_many(requests)
        ends = run_until_idle(redis_client, settings, defect, tmp_path)
        poison = tickets[3]
        assert all(ticket.result().ok for ticket in tickets if ticket is not poison)
        with pytest.raises(CommandFailed, match=f"{MOST_DEATHS} workers ended while they tried it alone"):
            poison.result()
    assert ends == 2 + MOST_DEATHS
    assert not redis_client.exists(keys.trials(1))
    assert [event.epoch for event in stored_events(settings) if event.command_id == poison.command_id] == (
        [1] if defect == "acknowledge" else []
    )


def test_a_poisoned_command_that_is_retried_is_tried_again_as_often(
    redis_client: Redis, settings: Settings, tmp_path: Path
) -> None:
    """Once the defect is mended it does what it was sent for."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        ticket = client.submit(Put("b", POISON, "positive"))
        assert run_until_idle(redis_client, settings, "decide", tmp_path) == 2 + MOST_DEATHS
        with pytest.raises(CommandFailed):
            ticket.result()
        assert redis_client.hget(keys.job(ticket.command_id), "deaths") is None
        with serving(settings, projector=False):
            assert client.put("b", POISON, "positive").ok


@pytest.mark.parametrize(("defect", "deaths"), [("publish", 1 + MOST_DEATHS), ("publish raises", 0)])
def test_an_event_that_breaks_whoever_publishes_it_is_left_out(
    redis_client: Redis, settings: Settings, tmp_path: Path, defect: str, deaths: int
) -> None:
    """One worker ends with a page of events, then they go out one by one; the others do, the store keeps it, lists are
    right, and `doctor` names it. What is acknowledged next goes past the gap."""
    partition = partition_of(settings, "b")
    with FeedbackClient.from_url(settings.redis_url) as client:
        with serving(settings, projector=False):
            first = [*client.submit_many(Put(session_id, "m1", "positive") for session_id in NEIGHBOURS)]
            first.append(client.submit(Put("b", POISON, "positive")))
            assert all(ticket.result().ok for ticket in first)
        redis_client.delete(keys.events(partition))
        later = client.submit_many(Put(session_id, "m2", "positive") for session_id in NEIGHBOURS)
        assert run_until_idle(redis_client, settings, defect, tmp_path) == deaths
        assert all(ticket.result().ok for ticket in later)
        with serving(settings, workers=0):
            listed = client.list("b", at_least=3)
            assert [item.message_id for item in items_of(listed)] == ["m1", POISON, "m2"]
    stored = [event for event in stored_events(settings) if event.partition == partition.number]
    left_out = [event for event in stored if event.message_id == POISON]
    assert events_of(redis_client, partition) == [event for event in stored if event not in left_out]
    env = {"FEEDBACK_REDIS_URL": settings.redis_url, "FEEDBACK_SIDECAR_URL": settings.sidecar_url}
    told = feedback("doctor", "--json", env=env | {"FEEDBACK_SESSIONS": settings.sessions}).document
    (finding,) = (one for one in told["findings"] if one["check"] == "events")
    assert finding["detail"].startswith(f"{left_out[0].event_id} is not in its stream: ")
    assert ("3 workers ended" if deaths else "ZeroDivisionError: a bug") in finding["detail"]
    redis_client.delete(keys.events(partition), keys.unpublished(1))
    with serving(settings, projector=False):
        wait_until(lambda: events_of(redis_client, partition) == stored, "mended, all are published")
