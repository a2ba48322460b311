"""Commands of Sessions that have to wait, when they are more than a worker may hold: they wait in Redis alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, FlushFailed, LiveSessions, Put, QueueFull, SessionIdentity, Ticket, keys
from feedback.commands import PutCommand
from feedback.crashpoints import VARIABLE, Action, CrashPoint
from feedback.partitions import PartitionId
from feedback.settings import Settings
from feedback.wire import encode_job
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import enqueue_raw, put_command, set_up
from tests.outcomes import assert_sound, is_idle, stored_events
from tests.processes import child
from worker.claims import Claim, Gone, Malformed
from worker.dead_letters import DeadLetters
from worker.letters import choose_for_retry
from worker.queue import ClaimQueue

pytestmark = pytest.mark.server

ONE = PartitionId(1, 0)
STUCK, FREE = "stuck", "free"
IDENTITY = SessionIdentity(created_at=CREATED_AT, cwd="/w")


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """One partition, of which a worker holds 64 commands, or 8 MiB."""
    settings = settings_for(
        valkey_url,
        tmp_path,
        partitions=1,
        batch_size=1,
        max_note_bytes=900_000,
        max_attempts=1_000_000,
        event_retention=1_000_000,
    )
    for session_id in (STUCK, FREE):
        write_session(settings, session_id, "m1")
    set_up(redis_client, settings)
    return settings


@contextmanager
def held_open(settings: Settings) -> Iterator[threading.Event]:
    """The Session "stuck" has an owner that cannot flush it before the event is set."""
    allowed = threading.Event()

    def flush() -> None:
        if not allowed.is_set():
            raise OSError("not yet")

    with LiveSessions.from_url(settings.redis_url) as live, live.register(STUCK, IDENTITY, flush):
        yield allowed


def submit(client: FeedbackClient, many: int, large: int = 0) -> list[Ticket]:
    """Puts on the Session that waits: some with a note of 800,000 bytes, each after as many others."""
    notes = ["x" * 800_000 if large and number % (many // large) == 0 else None for number in range(many)]
    return [client.submit(Put(STUCK, "m1", "positive", note)) for note in notes]


def test_a_tail_past_every_bound_holds_nobody_else_up(settings: Settings, redis_client: Redis) -> None:
    """By number and by bytes: others are served meanwhile, the worker holds little, and all goes on in order."""
    with FeedbackClient.from_url(settings.redis_url) as client, held_open(settings) as allowed:
        tickets = submit(client, 96, large=12)
        with serving(settings, projector=False):
            others = [client.put(FREE, "m1", "positive")]
            wait_until(lambda: not redis_client.exists(keys.queue(ONE)), "everything is claimed")
            assert redis_client.zcard(keys.aside(ONE)) + redis_client.llen(keys.claimed(ONE)) == len(tickets)
            assert redis_client.llen(keys.claimed(ONE)) < 64
            others.append(client.put(FREE, "m1", "negative", if_version="stale"))
            tickets += submit(client, 10)
            tickets.append(client.submit(Put(STUCK, "m1", "negative", if_version="stale")))
            allowed.set()
            revisions = [ticket.result(60).revision for ticket in tickets]
        assert [result.ok for result in others] == [True, False]
    assert revisions == [1] * len(tickets)
    assert is_idle(redis_client, settings)
    events = [event.command_id for event in stored_events(settings) if event.session_id == STUCK]
    assert events == [ticket.command_id for ticket in tickets]


def test_each_is_given_up_in_its_turn(settings: Settings, redis_client: Redis) -> None:
    """After as many tries as any, also what was set aside, in the order in which they were sent."""
    patient = msgspec.structs.replace(settings, max_attempts=1)
    with FeedbackClient.from_url(settings.redis_url) as client, held_open(settings):
        tickets = submit(client, 100)
        with serving(patient, projector=False):
            for ticket in tickets:
                with pytest.raises(FlushFailed):
                    ticket.result(60)
    letters = DeadLetters(redis_client).letters()
    assert [one.place.job_id.decode() for one in choose_for_retry(letters, 0).chosen] == [
        ticket.command_id for ticket in tickets
    ]
    assert not redis_client.exists(keys.aside(ONE), keys.claimed(ONE))


@pytest.mark.process
@pytest.mark.parametrize("action", [Action.KILL, Action.RAISE])
def test_a_worker_that_ends_when_it_has_set_commands_aside_leaves_them_in_order(
    settings: Settings, redis_client: Redis, tmp_path: Path, action: Action
) -> None:
    """Whoever comes next finds them behind what was claimed and before what came later."""
    with FeedbackClient.from_url(settings.redis_url) as client, held_open(settings) as allowed:
        tickets = submit(client, 80)
        worker = child("worker", settings, tmp_path, {VARIABLE: f"{CrashPoint.AFTER_ASIDE}:{action}:5"})
        wait_until(lambda: worker.poll() is not None, "it ends")
        worker.stop(0)
        assert redis_client.zcard(keys.aside(ONE)) > 0
        tickets += submit(client, 10)
        dead = redis_client.hget(keys.owners(1), "0")
        with serving(settings, projector=False):
            wait_until(lambda: redis_client.hget(keys.owners(1), "0") != dead, "the next one takes over")
            wait_until(lambda: redis_client.zcard(keys.aside(ONE)) > 64, "and sets some aside as well")
        waiting: list[bytes] = redis_client.execute_command("LRANGE", keys.queue(ONE), 0, -1)
        assert [job_id.decode() for job_id in waiting] == [ticket.command_id for ticket in tickets]
        allowed.set()
        with serving(settings, projector=False):
            for ticket in tickets:
                assert ticket.result(60).revision == 1
    assert_sound(redis_client, settings, [ticket.command_id for ticket in tickets])


@pytest.fixture
def queue(redis_client: Redis, settings: Settings) -> ClaimQueue:
    redis_client.hset(keys.owners(1), "0", "me")
    return ClaimQueue(redis_client, "me", settings)


def enqueue(redis: Redis, session_id: str, many: int) -> list[PutCommand]:
    commands = [put_command(session_id, "m1") for _ in range(many)]
    for command in commands:
        enqueue_raw(redis, ONE, command.command_id.encode(), {"data": encode_job(command), "status": "queued"})
    return commands


def claim_all(queue: ClaimQueue, many: int) -> list[Claim]:
    batch = queue.claim({ONE: 0}, many)[ONE]
    assert batch is not None
    return [claim for claim in batch.claims if isinstance(claim, Claim)]


def names(redis: Redis, key: str) -> list[str]:
    ids: list[bytes] = redis.execute_command("LRANGE", key, 0, -1)
    return [job_id.decode() for job_id in ids]


def test_sessions_are_resumed_one_by_one_in_order(queue: ClaimQueue, redis_client: Redis) -> None:
    """Behind and before what lies there already, as many as asked for; what became of a job meanwhile is seen."""
    ours, others = enqueue(redis_client, STUCK, 5), enqueue(redis_client, FREE, 1)
    a, b, c, d, e, other = claim_all(queue, 9)
    assert queue.set_aside(ONE, [(c, False), (other, False), (d, False)])
    assert queue.set_aside(ONE, [(b, True), (a, True), (e, False)])
    assert names(redis_client, keys.claimed(ONE)) == []
    redis_client.delete(keys.job(ours[1].command_id))
    redis_client.delete(keys.job(ours[2].command_id))
    redis_client.set(keys.job(ours[2].command_id), "no hash")
    first, rest, over = queue.resume(ONE, STUCK, 1), queue.resume(ONE, STUCK, 9), queue.resume(ONE, STUCK, 9)
    assert first is not None
    assert rest is not None
    assert over is not None
    found = [*first.claims, *rest.claims]
    assert [claim.job_id.decode() for claim in found] == [command.command_id for command in ours]
    assert [type(claim) for claim in found] == [Claim, Gone, Malformed, Claim, Claim]
    assert (first.more, rest.more, over.claims, over.more) == (True, False, [], False)
    assert names(redis_client, keys.claimed(ONE)) == [command.command_id for command in ours]
    assert queue.waits_aside(ONE, FREE)
    assert not queue.waits_aside(ONE, STUCK)
    recovered = queue.recover(ONE)
    assert recovered is not None
    assert recovered.commands == 5
    assert names(redis_client, keys.queue(ONE)) == [command.command_id for command in (*ours, *others)]


def test_only_the_owner_sets_aside_and_resumes(queue: ClaimQueue, redis_client: Redis) -> None:
    enqueue(redis_client, STUCK, 2)
    first, second = claim_all(queue, 9)
    assert queue.set_aside(ONE, [(first, False)])
    redis_client.hset(keys.owners(1), "0", "another")
    assert not queue.set_aside(ONE, [(second, False)])
    assert queue.resume(ONE, STUCK, 9) is None
    assert queue.recover(ONE) is None
    assert names(redis_client, keys.claimed(ONE)) == [second.command.command_id]
    assert redis_client.zcard(keys.aside(ONE)) == 1


def test_a_host_may_send_again_what_is_set_aside_and_fills_the_queue_of_its_own_session_only(
    queue: ClaimQueue, redis_client: Redis
) -> None:
    """It is known, and not enqueued twice; past `max_queued` the Session that waits is refused, others are not."""
    with FeedbackClient(redis_client, max_queued=3) as client:
        puts = [Put(STUCK, "m1", "positive", command_id=uuid4()) for _ in range(3)]
        tickets = [client.submit(put) for put in puts]
        assert queue.set_aside(ONE, [(claim, False) for claim in claim_all(queue, 9)])
        for put in puts:
            client.submit(put)
        assert not redis_client.exists(keys.queue(ONE))
        with pytest.raises(QueueFull):
            client.submit(Put(STUCK, "m1", "positive"))
        client.submit(Put(FREE, "m1", "positive"))
        assert redis_client.llen(keys.queue(ONE)) == 1
        # A server that lost them is told again.
        redis_client.delete(keys.aside(ONE))
        client.submit(puts[0])
        assert names(redis_client, keys.queue(ONE))[1:] == [tickets[0].command_id]
