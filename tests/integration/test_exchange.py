"""Acknowledging one batch and claiming the next, sent together: nothing is lost or given twice when one fails."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from feedback import FeedbackClient, Put, keys
from feedback.partitions import PartitionId
from tests.harness import settings_for, write_session
from tests.integration.rq_jobs import results_of
from worker import acknowledge
from worker.claims import Claim, Claimed, Ending
from worker.core.shares import Rebalance
from worker.engine import Ownership
from worker.exchange import LOOK_AGAIN, Exchange, Received
from worker.leases import LeaseTable
from worker.messages import Wish
from worker.meter import Meter
from worker.queue import ClaimQueue
from worker.runtime import Runtime, open_runtime

pytestmark = pytest.mark.server

ONE = PartitionId(1, 0)
MESSAGES = [f"m{number}" for number in range(8)]


class Owner:
    """Owns the one partition; claims, commits and acknowledges by an exchange."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.redis = runtime.redis
        self.queue = ClaimQueue(runtime.redis, "w1", runtime.settings)
        LeaseTable(runtime.redis, "w1", runtime.standing.current, 60.0).acquire(Rebalance(acquire=((0, None),)), {})
        fence = runtime.store.acquire_fences([ONE], "w1")[ONE]
        self._owned = {ONE: Ownership(fence.epoch, fence.sequence)}
        self._engine = runtime.engine
        self.exchange = Exchange(runtime.redis, self.queue, runtime.store, "w1", 1, meter=Meter())
        self.held = 0

    def claim(self, most: int, endings: Sequence[tuple[Claimed, Ending]] = (), *, wait_s: float = 0.0) -> Received:
        """Acknowledge, claim up to so many behind it, and take that in."""
        self.held -= len(endings)
        call = self.queue.claim_call(1, {ONE: (self.held, Wish.YES)}, most, rings=10)
        self.exchange.acknowledge(endings)
        self.exchange.claim(call, wait_s=wait_s)
        received = self.exchange.receive()
        self.held += len(claims_of(received))
        return received

    def commit(self, received: Received) -> Sequence[tuple[Claimed, Ending]]:
        return self._engine.process(claims_of(received), self._owned, {}, {}).ended


def claims_of(received: Received) -> list[Claimed]:
    return [claim for batch in received.taken.batches.values() if batch is not None for claim in batch.claims]


def ids_of(received: Received) -> list[str]:
    return [claim.command.command_id for claim in claims_of(received) if isinstance(claim, Claim)]


@pytest.fixture(autouse=True, params=[64, 2], ids=["all at once", "two at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In how many runs of the script a batch is acknowledged, makes no difference."""
    monkeypatch.setattr(acknowledge, "_AT_ONCE", request.param)


@pytest.fixture
def owner(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Owner]:
    settings = settings_for(valkey_url, tmp_path, partitions=1)
    write_session(settings, "s", *MESSAGES)
    with open_runtime(settings, redis_client) as runtime:
        owner = Owner(runtime)
        with closing(owner.exchange):
            yield owner


@pytest.fixture
def submitted(owner: Owner, redis_client: Redis) -> list[str]:
    with FeedbackClient(redis_client) as client:
        return [ticket.command_id for ticket in client.submit_many(Put("s", name, "positive") for name in MESSAGES)]


def answers(redis: Redis, ids: Sequence[str]) -> list[int]:
    """How often each was answered."""
    return [len(results_of(redis, command_id)) for command_id in ids]


def sequences(redis: Redis) -> list[int]:
    """Of the events in the partition's stream."""
    entries = redis.execute_command("XRANGE", keys.events(ONE), "-", "+")
    return [int(entry_id.partition(b"-")[0]) for entry_id, _ in entries]


def test_a_claim_counts_on_the_acknowledgement_before_it(owner: Owner, submitted: list[str]) -> None:
    """Batch by batch, each acknowledged together with the claim of the next: all of them, in order, once."""
    received = owner.claim(3)
    taken = ids_of(received)
    while claims_of(received):
        received = owner.claim(3, owner.commit(received))
        taken += ids_of(received)
    assert taken == submitted
    assert answers(owner.redis, submitted) == [1] * len(submitted)
    assert not owner.redis.exists(keys.claimed(ONE), keys.queue(ONE))


def test_an_acknowledgement_waits_for_what_is_under_way(owner: Owner, submitted: list[str]) -> None:
    """While one batch is committed, the server acknowledges the one before and claims the next."""
    first, second = owner.claim(2), owner.claim(2)
    owner.held -= 2
    owner.exchange.acknowledge(owner.commit(first))
    owner.exchange.claim(owner.queue.claim_call(1, {ONE: (owner.held, Wish.YES)}, 2))
    endings = owner.commit(second)
    owner.held -= 2
    owner.exchange.acknowledge(endings)
    third = owner.exchange.receive()
    owner.held += len(claims_of(third))
    assert third.acknowledged == claims_of(first)
    assert ids_of(third) == submitted[4:6]
    assert ids_of(owner.claim(100)) == submitted[6:]
    assert answers(owner.redis, submitted) == [1] * 4 + [0] * 4


def test_one_that_waits_follows_when_the_one_before_has_failed(owner: Owner, submitted: list[str]) -> None:
    """The stream lost its events in between: those of both batches are there in the end, in order."""
    first, second, third = owner.claim(2), owner.claim(2), owner.claim(2)
    owner.exchange.acknowledge(owner.commit(first))
    owner.exchange.receive()
    owner.redis.delete(keys.events(ONE))
    owner.exchange.acknowledge(owner.commit(second))
    owner.exchange.acknowledge(owner.commit(third))
    assert owner.exchange.receive().acknowledged == claims_of(second)
    assert owner.exchange.receive().acknowledged == claims_of(third)
    assert not owner.exchange.is_under_way
    assert sequences(owner.redis) == [1, 2, 3, 4, 5, 6]
    assert answers(owner.redis, submitted) == [1] * 6 + [0] * 2


def test_what_was_claimed_behind_a_failed_acknowledgement_is_given_out_again(
    owner: Owner, submitted: list[str]
) -> None:
    """The stream had lost events: they are published first, and the claim that counted wrongly is not used."""
    first = owner.claim(3)
    second = owner.claim(2, owner.commit(first))
    endings = owner.commit(second)
    owner.redis.delete(keys.events(ONE))
    missed = owner.claim(2, endings)
    assert (claims_of(missed), missed.taken.rings) == ([], [LOOK_AGAIN])
    assert missed.acknowledged == [claim for claim, _ in endings]
    assert answers(owner.redis, submitted) == [1] * 5 + [0] * 3
    assert owner.redis.xlen(keys.events(ONE)) == 5
    assert ids_of(owner.claim(100)) == submitted[5:]


def test_an_acknowledgement_of_which_some_was_done_is_done_to_its_end(owner: Owner, submitted: list[str]) -> None:
    """Whatever broke off between two runs: what was acknowledged is not answered twice, the rest is."""
    endings = owner.commit(owner.claim(5))
    acknowledge.acknowledge(owner.queue, owner.runtime.store, endings[:3])
    missed = owner.claim(2, endings)
    assert missed.acknowledged == [claim for claim, _ in endings]
    assert ids_of(missed) == submitted[5:7]
    assert answers(owner.redis, submitted) == [1] * 5 + [0] * 3
    assert owner.redis.xlen(keys.events(ONE)) == 5


def test_failures_are_retried_in_order_also_when_the_server_had_no_memory_for_what_was_before_them(
    owner: Owner, submitted: list[str]
) -> None:
    """It refuses a run that begins with an answer, and would take one of failures only, noting them as earlier ones."""
    for command_id in submitted[1:]:
        owner.redis.hset(keys.job(command_id), "data", b"garbage")
    endings = owner.commit(owner.claim(100))
    owner.redis.config_set("maxmemory", 1)
    try:
        owner.exchange.acknowledge(endings)
        with pytest.raises(OutOfMemoryError):
            owner.exchange.receive()
        owner.exchange.abandon()
    finally:
        owner.redis.config_set("maxmemory", 0)
    owner.queue.finish(endings)
    noted = [owner.redis.execute_command("HGET", keys.job(one), "first_failed").split(b"-") for one in submitted[1:]]
    assert noted == sorted(noted, key=lambda moment: (moment[0], int(moment[1])))
    assert answers(owner.redis, submitted[:1]) == [1]


def test_scripts_that_the_server_forgot_are_taught_again(owner: Owner, submitted: list[str]) -> None:
    endings = owner.commit(owner.claim(3))
    owner.redis.script_flush()
    assert owner.claim(2, endings).taken.rings == [LOOK_AGAIN]
    assert answers(owner.redis, submitted[:3]) == [1] * 3
    assert ids_of(owner.claim(100)) == submitted[3:]


def test_a_wait_ends_with_a_ring_which_the_claim_takes_off(owner: Owner, redis_client: Redis) -> None:
    """Rung before or while it waits; nothing of it is left for the next."""
    redis_client.rpush(keys.wake("w1"), "lease", "look")
    assert owner.claim(1, wait_s=4.0).taken.rings == [b"lease", b"look"]
    assert not redis_client.exists(keys.wake("w1"))
    assert list(owner.claim(1, wait_s=0.001).taken.rings) == []


def test_what_is_abandoned_was_done_all_the_same(owner: Owner, submitted: list[str]) -> None:
    """A claim whose answer nobody looked at is given out again."""
    owner.exchange.claim(owner.queue.claim_call(1, {ONE: (0, Wish.YES)}, 3))
    owner.exchange.abandon()
    assert not owner.exchange.is_under_way
    assert owner.redis.llen(keys.claimed(ONE)) == 3
    assert ids_of(owner.claim(100)) == submitted[:3]
