"""SIGTERM under load: the worker ends what it has in hand, puts the rest back, and leaves nothing claimed."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, LiveSessions, Put, SessionIdentity, Ticket, keys
from feedback.partitions import PartitionId
from feedback.settings import Settings
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import send, set_up, worker_process
from tests.outcomes import assert_sound, is_idle, stored_events
from tests.proxy import Proxy, Trap, runs
from worker.queue import CLAIM, FINISH

pytestmark = [pytest.mark.server, pytest.mark.process]

SESSIONS = [f"session-{number}" for number in range(12)]
MESSAGES = ("m1", "m2", "m3")
STUCK = "stuck"

IN_HAND: dict[str, Callable[[Proxy], Trap]] = {
    "claiming": lambda proxy: proxy.hold_reply(runs(CLAIM), nth=4),
    "about to acknowledge": lambda proxy: proxy.hold_request(runs(FINISH), nth=4),
    "acknowledging": lambda proxy: proxy.hold_reply(runs(FINISH), nth=4),
}


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, max_attempts=1000, batch_size=32, event_retention=1_000_000)
    for session_id in (*SESSIONS, STUCK):
        write_session(settings, session_id, *MESSAGES)
    for script in (CLAIM, FINISH):
        redis_client.script_load(script.source)
    return settings


def submit(client: FeedbackClient, rounds: int) -> list[Ticket]:
    """Far more than one batch, on all Sessions."""
    requests = [Put(session_id, message_id, "positive") for session_id in SESSIONS for message_id in MESSAGES]
    return [ticket for _ in range(rounds) for ticket in client.submit_many(requests)]


def listed(redis: Redis, partition: PartitionId) -> list[str]:
    """What waits in a partition, first to last."""
    return [job.decode() for job in redis.lrange(keys.queue(partition), 0, -1) if isinstance(job, bytes)]


@contextmanager
def stuck(settings: Settings) -> Iterator[threading.Event]:
    """A host holds one more Session open, and cannot flush it before the event is set: until then it is parked."""
    allowed = threading.Event()

    def flush() -> None:
        if not allowed.is_set():
            raise OSError("not yet")

    identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    with LiveSessions.from_url(settings.redis_url) as live, live.register(STUCK, identity, flush):
        yield allowed


@pytest.mark.parametrize(
    ("moment", "terms"),
    [
        ("claiming", 1),
        ("about to acknowledge", 1),
        ("acknowledging", 2),
        pytest.param("claiming", 2, marks=pytest.mark.chaos),
        pytest.param("about to acknowledge", 2, marks=pytest.mark.chaos),
        pytest.param("acknowledging", 1, marks=pytest.mark.chaos),
    ],
)
def test_a_worker_that_is_told_to_stop_leaves_nothing_claimed(
    moment: str, terms: int, settings: Settings, redis_client: Redis
) -> None:
    """What it took is answered or waits again, in order, a parked Session's commands too; a second signal changes
    nothing. The next worker answers all that was accepted."""
    set_up(redis_client, settings)
    with (
        FeedbackClient.from_url(settings.redis_url) as client,
        Proxy(settings.redis_url) as proxy,
        stuck(settings) as allowed,
    ):
        tickets = [*client.submit_many(Put(STUCK, message_id, "positive") for message_id in MESSAGES)]
        tickets += submit(client, 30)
        trap = IN_HAND[moment](proxy)
        with worker_process(msgspec.structs.replace(settings, redis_url=proxy.url)) as process:
            trap.wait()
            for _ in range(terms):
                send(process, signal.SIGTERM)
            tickets += submit(client, 1)
            trap.release()
            assert wait_until(lambda: process.poll() is not None, "it ends") and process.poll() == 0
        assert_put_back(redis_client, settings, tickets)
        allowed.set()
        with serving(settings, projector=False):
            answers = [ticket.result(60) for ticket in tickets]
            wait_until(lambda: is_idle(redis_client, settings), "everything is finished")
    assert sum(answer.ok for answer in answers) == len(MESSAGES) * (len(SESSIONS) + 1)
    assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])


def assert_put_back(redis: Redis, settings: Settings, tickets: list[Ticket]) -> None:
    """Nothing is owned or claimed; what is not done waits, in the order in which it was submitted."""
    partitions = [PartitionId(1, number) for number in range(settings.partitions)]
    assert not redis.exists(keys.owners(1), keys.WORKERS, *map(keys.claimed, partitions))
    done = {event.command_id for event in stored_events(settings)}
    assert 0 < len(done) < len(tickets)
    waiting = [job for partition in partitions for job in listed(redis, partition)]
    order = {ticket.command_id: place for place, ticket in enumerate(tickets)}
    assert set(waiting) == set(order) - done
    for partition in partitions:
        places = [order[job] for job in listed(redis, partition)]
        assert places == sorted(places)
    assert {ticket.command_id for ticket in tickets[: len(MESSAGES)]} <= set(waiting), "the parked ones"
