"""Acknowledging batches: event streams are copies of the store's log, and are mended from it, each on its own."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from redis import Redis

from feedback import FeedbackClient, keys
from feedback.commands import PutCommand, digest_of
from feedback.errors import CommandExpired
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.sidecar.store import StoredTopology
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import entries, partition_of, put_command, request_of, results_of
from tests.outcomes import published_events, stored_events
from worker.acknowledge import acknowledge
from worker.claims import Claim, Claimed, Ending, Failed
from worker.core.batching import Answered
from worker.core.shares import Rebalance
from worker.engine import Ownership
from worker.leases import LeaseTable
from worker.queue import ClaimQueue
from worker.runtime import Runtime, open_runtime

pytestmark = pytest.mark.server

PARTITIONS = 2
SESSIONS = ("even", "odd")
"""One Session in each partition."""


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=PARTITIONS)
    assert {partition_of(settings, session_id).number for session_id in SESSIONS} == set(range(PARTITIONS))
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1", "m2", "m3")
    return settings


class Owner:
    """Owns all partitions, and works step by step."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.queue = ClaimQueue(runtime.redis, "w1", runtime.settings)
        table = LeaseTable(runtime.redis, "w1", runtime.standing.current, runtime.settings.lease_ttl)
        table.acquire(Rebalance(acquire=tuple((number, None) for number in range(PARTITIONS))), {})
        fences = runtime.store.acquire_fences(runtime.standing.current.all_partitions(), "w1")
        self.owned = {partition: Ownership(fence.epoch, fence.sequence) for partition, fence in fences.items()}

    def commit(self, *commands: PutCommand) -> Sequence[tuple[Claimed, Ending]]:
        """Enqueue, claim and commit these commands."""
        with FeedbackClient(self.runtime.redis) as client:
            client.submit_many([request_of(command) for command in commands])
        batches = self.queue.claim(dict.fromkeys(self.owned, 0), 1000)
        return self.process([claim for batch in batches.values() if batch is not None for claim in batch.claims])

    def process(self, claims: Sequence[Claimed]) -> Sequence[tuple[Claimed, Ending]]:
        return self.runtime.engine.process(claims, self.owned, {}, {}).ended

    def acknowledge(self, endings: Sequence[tuple[Claimed, Ending]]) -> None:
        acknowledge(self.queue, self.runtime.store, endings)

    def stream(self, partition: PartitionId) -> list[bytes]:
        return [fields[b"event"] for fields in entries(self.runtime.redis, keys.events(partition))]

    def log(self, partition: PartitionId) -> list[bytes]:
        return [event for _, event in self.runtime.store.outcomes(partition, 0, 1000)]


@pytest.fixture
def owner(redis_client: Redis, settings: Settings) -> Iterator[Owner]:
    with open_runtime(settings, redis_client) as runtime:
        yield Owner(runtime)


def test_every_stream_that_lost_events_gets_them_back(owner: Owner) -> None:
    """One batch over two partitions, both of whose streams are gone: neither keeps a hole."""
    owner.acknowledge(owner.commit(*(put_command(session_id, "m1") for session_id in SESSIONS)))
    endings = owner.commit(*(put_command(session_id, "m2") for session_id in SESSIONS))
    owner.runtime.redis.delete(*map(keys.events, owner.owned))
    owner.acknowledge(endings)
    for partition in owner.owned:
        assert len(owner.stream(partition)) == 2
        assert owner.stream(partition) == owner.log(partition)


def test_what_the_store_has_forgotten_too_stays_a_gap(owner: Owner) -> None:
    """Nobody waits for an event that is nowhere: the later ones are published, and consumers see the hole."""
    owner.acknowledge(owner.commit(*(put_command(session_id, "m1") for session_id in SESSIONS)))
    owner.runtime.store.prune(expired_before=2**53, limit=100)
    owner.runtime.redis.delete(*map(keys.events, owner.owned))
    owner.acknowledge(owner.commit(*(put_command(session_id, "m2") for session_id in SESSIONS)))
    for partition in owner.owned:
        assert owner.stream(partition) == owner.log(partition)
        assert owner.runtime.redis.xinfo_stream(keys.events(partition))["last-generated-id"] == b"2-0"


def test_an_acknowledgement_is_safe_to_repeat(owner: Owner) -> None:
    """Its answer may get lost: one result, one event, nothing claimed."""
    command = put_command("even", "m1")
    endings = owner.commit(command)
    for _ in range(2):
        owner.acknowledge(endings)
    partition = partition_of(owner.runtime.settings, "even")
    assert results_of(owner.runtime.redis, command.command_id) == [b"1"]
    assert len(owner.stream(partition)) == 1
    assert not owner.runtime.redis.exists(keys.claimed(partition))


def test_an_answer_is_given_although_its_claim_was_lost(owner: Owner) -> None:
    """Redis forgot the list of claims, or all it knew: whoever waits gets the answer that the store has, once."""
    kept, forgotten = put_command("even", "m1"), put_command("odd", "m1")
    endings = owner.commit(kept, forgotten)
    owner.runtime.redis.delete(*map(keys.claimed, owner.owned), keys.job(forgotten.command_id))
    for _ in range(2):
        owner.acknowledge(endings)
    for command in (kept, forgotten):
        assert results_of(owner.runtime.redis, command.command_id) == [b"1"]


def test_answers_note_how_far_their_sessions_are(owner: Owner) -> None:
    """Beside the cached list, for whoever reads it without the store. It never goes back, whatever comes again late."""
    redis, name = owner.runtime.redis, keys.list_cache("even")
    redis.hset(name, "body", "a list")
    first = owner.commit(put_command("even", "m1"), put_command("even", "m2"), put_command("odd", "nothing"))
    owner.acknowledge(first)
    assert redis.hgetall(name) == {b"body": b"a list", b"latest": b"2"}
    assert 0 < redis.ttl(name) <= keys.CACHE_TTL_S
    assert not redis.exists(keys.list_cache("odd")), "nobody ever rated it"
    later = owner.commit(put_command("even", "m3"))
    owner.acknowledge(later)
    owner.acknowledge(first)
    assert redis.hget(name, "latest") == b"3"
    for foreign in (lambda: redis.hset(name, "latest", "x"), lambda: redis.set(name, "x"), lambda: redis.delete(name)):
        foreign()
        owner.acknowledge(later)
        assert redis.hget(name, "latest") == b"3"
        assert redis.ttl(name) > 0


def test_an_answer_from_the_record_notes_its_revision(owner: Owner) -> None:
    """Also when its event went out before, as the next owner mended the stream; that notes it, too."""
    redis, name = owner.runtime.redis, keys.list_cache("even")
    endings = owner.commit(put_command("even", "m1"), put_command("odd", "m1"))
    partition = partition_of(owner.runtime.settings, "even")
    owner.queue.publish(partition, [*owner.runtime.store.outcomes(partition, 0, 10), (2, b"of a newer program")])
    assert redis.hget(name, "latest") == b"1"
    redis.delete(name)
    owner.acknowledge(owner.process([claim for claim, _ in endings]))
    assert redis.hget(name, "latest") == b"1"


class MeasuredQueue(ClaimQueue):
    """Notes how many bytes of events each request carries."""

    sent: ClassVar[list[int]] = []

    def finish(self, endings: Sequence[tuple[Claimed, Ending]], *, past_gap: Collection[PartitionId] = ()) -> None:
        self.sent.append(sum(len(end.encoded) for _, end in endings if isinstance(end, Answered)))
        super().finish(endings, past_gap=past_gap)

    def publish(self, partition: PartitionId, events: Sequence[tuple[int, bytes]]) -> None:
        self.sent.append(sum(len(event) for _, event in events))
        super().publish(partition, events)


def test_answers_far_larger_than_their_commands_go_out_in_parts(owner: Owner) -> None:
    """Conflicts answer with the stored item. A request of any size would hold the server up for everybody."""
    owner.queue = MeasuredQueue(owner.runtime.redis, "w1", owner.runtime.settings)
    owner.acknowledge(owner.commit(put_command("even", "m1", note="x" * 8192)))
    partition = partition_of(owner.runtime.settings, "even")
    owner.runtime.redis.delete(keys.events(partition))
    conflicts = [put_command("even", "m1") for _ in range(800)]
    MeasuredQueue.sent.clear()
    owner.acknowledge(owner.commit(*conflicts))
    assert sum(MeasuredQueue.sent) > 6 * 2**20
    assert max(MeasuredQueue.sent) <= 4 * 2**20
    assert owner.stream(partition) == owner.log(partition)
    assert all(results_of(owner.runtime.redis, command.command_id) == [b"1"] for command in conflicts)


def test_a_failure_counts_only_from_the_partitions_owner(owner: Owner) -> None:
    """The new owner may be applying the command by now, and would find its claim gone."""
    redis, command = owner.runtime.redis, put_command("even", "m1")
    with FeedbackClient(redis) as client:
        client.submit(request_of(command))
    partition = partition_of(owner.runtime.settings, "even")
    batch = owner.queue.claim({partition: 0}, 1)[partition]
    assert batch is not None
    table = LeaseTable(redis, "w2", owner.runtime.standing.current, owner.runtime.settings.lease_ttl)
    assert table.seize({partition.number: "w1"})
    ended = [(claim, Failed.of(CommandExpired("by a clock that is ahead"))) for claim in batch.claims]
    owner.queue.finish(ended)
    assert redis.lrange(keys.claimed(partition), 0, -1) == [command.command_id.encode()]
    assert results_of(redis, command.command_id) == []
    LeaseTable(redis, "w1", owner.runtime.standing.current, owner.runtime.settings.lease_ttl).seize(
        {partition.number: "w2"}
    )
    owner.queue.finish(ended)
    assert results_of(redis, command.command_id) == [b"2"]


def test_a_command_recorded_under_another_generation_is_answered_without_its_event(owner: Owner) -> None:
    """That one belongs to another stream; in this one its number would be ahead of all that follow."""
    command = put_command("even", "m1")
    owner.acknowledge(owner.commit(command))
    later = PartitionId(2, 0)
    former = owner.runtime.store.topology()
    assert owner.runtime.store.set_topology(StoredTopology(2, 1, former=PARTITIONS), replacing=former)
    fence = owner.runtime.store.acquire_fences([later], "w1")[later]
    owner.owned[later] = Ownership(fence.epoch, fence.sequence)
    redelivered = Claim(later, command.command_id.encode(), command, digest_of(command), 0)
    owner.runtime.redis.rpush(keys.claimed(later), command.command_id)
    owner.acknowledge(owner.process([redelivered]))
    assert results_of(owner.runtime.redis, command.command_id) == [b"1", b"1"]
    assert owner.stream(later) == []


def test_a_server_that_forgot_everything_gets_the_events_back(redis_client: Redis, settings: Settings) -> None:
    """While a worker serves: streams equal the store's log again, and commands go on being answered."""
    with serving(settings, projector=False), FeedbackClient(redis_client) as client:
        for session_id in SESSIONS:
            assert client.put(session_id, "m1", "positive").ok
        before = stored_events(settings)
        redis_client.flushall()
        wait_until(lambda: published_events(redis_client, settings) == before, "the events stand there again")
        for session_id in SESSIONS:
            assert client.put(session_id, "m2", "positive").ok
        assert published_events(redis_client, settings) == stored_events(settings)
