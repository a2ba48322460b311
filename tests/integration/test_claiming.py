"""Claiming on a real server, step by step (worker/scripts: claim, recover)."""

from pathlib import Path

import pytest
from redis import Redis

from feedback import keys
from feedback.commands import MAX_COMMAND_BYTES, PutCommand
from feedback.flushing import LiveOwner
from feedback.live_owners import live_owners
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from feedback.wire import encode_job
from tests.harness import settings_for
from tests.integration.rq_jobs import enqueue_raw, put_command
from worker.claims import Claim, Gone, Malformed, Recovered
from worker.queue import ClaimQueue

pytestmark = pytest.mark.server

ONE, TWO = PartitionId(1, 0), PartitionId(1, 1)
IDENTITY = SessionIdentity(created_at=5, cwd="/w")


@pytest.fixture
def queue(valkey_url: str, redis_client: Redis, tmp_path: Path) -> ClaimQueue:
    """Of a worker that owns both partitions, and may hold 8 commands of each."""
    for partition in (ONE, TWO):
        redis_client.hset(keys.owners(1), str(partition.number), "me")
    return ClaimQueue(redis_client, "me", settings_for(valkey_url, tmp_path, batch_size=2))


def enqueue(redis: Redis, partition: PartitionId, count: int, note: str = "n") -> list[PutCommand]:
    commands = [put_command("s", "m", note=note) for _ in range(count)]
    for command in commands:
        enqueue_raw(redis, partition, command.command_id.encode(), {"data": encode_job(command)})
    return commands


def claimed(queue: ClaimQueue, held: int = 0, most: int = 100, partition: PartitionId = ONE) -> tuple[list[str], bool]:
    """The ids of what one claim gives, and whether more waits."""
    batch = queue.claim({partition: held}, most)[partition]
    assert batch is not None
    return [claim.job_id.decode() for claim in batch.claims], batch.more


def ids(commands: list[PutCommand]) -> list[str]:
    return [command.command_id for command in commands]


def test_commands_come_in_queue_order(queue: ClaimQueue, redis_client: Redis) -> None:
    """As many as asked for; it says whether more waits."""
    commands = ids(enqueue(redis_client, ONE, 5))
    assert claimed(queue, 0, 2) == (commands[:2], True)
    assert claimed(queue, 2, 3) == (commands[2:], False)
    assert claimed(queue, 5) == ([], False)


def test_what_a_lost_answer_had_claimed_comes_again_before_anything_else(
    queue: ClaimQueue, redis_client: Redis
) -> None:
    """The worker says how many it knows of; the rest of the claimed list is its own."""
    commands = ids(enqueue(redis_client, ONE, 5))
    claimed(queue, 0, 3)
    assert claimed(queue, 0, 100) == (commands[:3], True)
    assert claimed(queue, 1, 100) == (commands[1:3], True)
    assert claimed(queue, 3, 100) == (commands[3:], False)


def test_no_more_is_claimed_than_a_worker_may_hold(queue: ClaimQueue, redis_client: Redis) -> None:
    """64 batches of each partition, parked ones included."""
    commands = ids(enqueue(redis_client, ONE, 130))
    assert claimed(queue, 0, 1000) == (commands[:128], True)
    assert claimed(queue, 128, 1000) == ([], True)


def test_a_claim_is_bounded_in_bytes(queue: ClaimQueue, redis_client: Redis) -> None:
    """One command at least; the others wait on their queue."""
    enqueue(redis_client, ONE, 8, note="x" * (MAX_COMMAND_BYTES - 1000))
    enqueue(redis_client, TWO, 8, note="x" * (MAX_COMMAND_BYTES - 1000))
    enqueue(redis_client, TWO, 2, note="x" * (MAX_COMMAND_BYTES - 1000))
    batches = queue.claim({ONE: 0, TWO: 0}, 100)
    counts = [len(batch.claims) for batch in batches.values() if batch is not None]
    assert sum(counts) == 16
    assert redis_client.llen(keys.queue(TWO)) == 2


def test_partitions_of_others_give_nothing(queue: ClaimQueue, redis_client: Redis) -> None:
    """Said apart from an empty queue: the worker lost them."""
    enqueue(redis_client, ONE, 1)
    redis_client.hset(keys.owners(1), str(ONE.number), "another")
    batches = queue.claim({ONE: 0, TWO: 0}, 100)
    assert batches[ONE] is None
    assert batches[TWO] is not None
    assert redis_client.llen(keys.queue(ONE)) == 1
    assert queue.recover(ONE) is None


def test_what_is_no_command_is_said_and_not_decoded(queue: ClaimQueue, redis_client: Redis) -> None:
    """Gone, another type's key, too large, empty, garbage, another id's."""
    other = put_command("s", "m")
    enqueue_raw(redis_client, ONE, b"gone", None)
    enqueue_raw(redis_client, ONE, b"string", None)
    redis_client.set(keys.job("string"), "x")
    enqueue_raw(redis_client, ONE, b"large", {"data": bytes(2 * MAX_COMMAND_BYTES + 1)})
    enqueue_raw(redis_client, ONE, b"empty", {"status": "queued"})
    enqueue_raw(redis_client, ONE, b"garbage", {"data": b"\xc1"})
    enqueue_raw(redis_client, ONE, b"other", {"data": encode_job(other)})
    batch = queue.claim({ONE: 0}, 100)[ONE]
    assert batch is not None
    assert [type(claim) for claim in batch.claims] == [Gone, *[Malformed] * 5]
    said = [str(claim.error) for claim in batch.claims if isinstance(claim, Malformed)]
    for words, reason in zip(("no hash", "2097153 bytes", "$", "$", "$.commandId"), said, strict=True):
        assert words in reason


def test_a_claim_says_who_holds_the_session(queue: ClaimQueue, redis_client: Redis) -> None:
    """A live owner, nobody, or that the job does not tell; what no host can have written is nobody's registration."""
    redis_client.set(keys.owner("host"), 1)
    redis_client.hset(keys.live("held"), mapping={"owner": "host", "session": "held", "created_at": 5, "cwd": "/w"})
    redis_client.hset(keys.live("left"), mapping={"owner": "dead", "session": "left", "created_at": 5})
    redis_client.hset(keys.live("absurd"), mapping={"owner": "host", "session": "absurd", "created_at": 10**30})
    redis_client.set(keys.live("foreign"), "x")
    for session_id in ("held", "left", "free", "absurd", "foreign", "untold"):
        command = put_command(session_id, "m")
        fields: dict[str, bytes | str] = {"data": encode_job(command)}
        if session_id != "untold":
            fields["session"] = keys.session_digest(session_id)
        enqueue_raw(redis_client, ONE, command.command_id.encode(), fields)
    batch = queue.claim({ONE: 0}, 100)[ONE]
    assert batch is not None
    found = {
        claim.command.session_id: (claim.owner, claim.owner_known) for claim in batch.claims if isinstance(claim, Claim)
    }
    assert found == {
        "held": (LiveOwner(owner_id="host", session_id="held", identity=IDENTITY), True),
        "left": (None, True),
        "free": (None, True),
        "absurd": (None, False),
        "foreign": (None, True),
        "untold": (None, False),
    }
    asked = live_owners(redis_client, ("foreign", "left", "absurd", "held", "free"))
    assert asked == {"held": LiveOwner(owner_id="host", session_id="held", identity=IDENTITY)}


def test_a_new_owner_puts_back_what_was_claimed_in_order(queue: ClaimQueue, redis_client: Redis) -> None:
    """Before all that waits; and learns how far the event stream goes. Repeating it changes nothing."""
    commands = ids(enqueue(redis_client, ONE, 5))
    claimed(queue, 0, 3)
    redis_client.xadd(keys.events(ONE), {"event": b"e"}, id="41-0")
    assert queue.recover(ONE) == Recovered(commands=3, published=41)
    assert queue.recover(ONE) == Recovered(commands=0, published=41)
    assert claimed(queue) == (commands, False)
    assert queue.recover(TWO) == Recovered(commands=0, published=0)
