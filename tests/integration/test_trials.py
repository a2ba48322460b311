"""Commands that are tried alone since a worker ended over them, on a real server (worker/scripts: claim, recover)."""

from pathlib import Path

import pytest
from redis import Redis

from feedback import CommandFailed, keys
from feedback.partitions import PartitionId
from feedback.wire import encode_job
from tests.harness import settings_for
from tests.integration.rq_jobs import enqueue_raw, put_command
from worker.claims import MOST_DEATHS, Claim, Claimed, Gone, Malformed
from worker.queue import ClaimQueue

pytestmark = pytest.mark.server

ONE = PartitionId(1, 0)


@pytest.fixture
def queue(valkey_url: str, redis_client: Redis, tmp_path: Path) -> ClaimQueue:
    """Of a worker that owns the partition."""
    redis_client.hset(keys.owners(1), "0", "me")
    return ClaimQueue(redis_client, "me", settings_for(valkey_url, tmp_path))


@pytest.fixture
def jobs(redis_client: Redis) -> list[bytes]:
    """Three commands on the partition's queue."""
    commands = [put_command("s", "m") for _ in range(3)]
    for command in commands:
        enqueue_raw(redis_client, ONE, command.command_id.encode(), {"data": encode_job(command)})
    return [command.command_id.encode() for command in commands]


def try_alone(queue: ClaimQueue) -> Claimed:
    """The next command of the queue, whose trial begins."""
    batch = queue.claim({ONE: 0}, 1, suspect=True)[ONE]
    assert batch is not None
    (claim,) = batch.claims
    return claim


def deaths(redis: Redis, jobs: list[bytes]) -> list[bytes | None]:
    return [redis.hget(keys.job(job.decode()), "deaths") for job in jobs]  # type: ignore[misc]  # redis-py types both its clients as one


def test_a_worker_that_ends_charges_what_it_tried_alone_and_nothing_else(
    queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]
) -> None:
    """Once, however often its successor puts the claims back."""
    claim = try_alone(queue)
    assert isinstance(claim, Claim)
    assert (claim.job_id, claim.suspect) == (jobs[0], True)
    for _ in range(2):
        queue.recover(ONE, bereft=True)
        assert deaths(redis_client, jobs) == [b"1", None, None]


def test_owners_that_end_twice_in_a_row_over_their_claims_are_noticed(
    queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]
) -> None:
    """Not one that ends for the first time, not one that had claimed nothing, and not after what it held was done."""

    def recovered() -> tuple[int, bool]:
        found = queue.recover(ONE, bereft=True)
        assert found is not None
        return found.commands, found.again

    assert recovered() == (0, False)
    queue.claim({ONE: 0}, 2)
    assert recovered() == (2, False)
    queue.claim({ONE: 0}, 3)
    assert recovered() == (3, True)
    queue.claim({ONE: 0}, 3)
    queue.end_trial(ONE)
    assert recovered() == (3, False)
    assert recovered() == (0, True)
    assert not redis_client.exists(keys.trials(1))


def test_a_trial_that_ended_charges_nobody(queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]) -> None:
    """What is claimed and parked has done no harm, whatever becomes of its worker; until it is tried again."""
    claim = try_alone(queue)
    assert isinstance(claim, Claim)
    queue.end_trial(ONE)
    queue.recover(ONE, bereft=True)
    assert deaths(redis_client, jobs) == [None] * 3
    queue.claim({ONE: 0}, 3)
    queue.begin_trial(claim)
    queue.recover(ONE, bereft=True)
    assert deaths(redis_client, jobs) == [b"1", None, None]


def test_a_worker_that_puts_its_own_claims_back_charges_nobody(
    queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]
) -> None:
    try_alone(queue)
    queue.recover(ONE)
    queue.recover(ONE, bereft=True)
    assert deaths(redis_client, jobs) == [None] * 3


def test_past_so_many_deaths_a_suspect_is_not_given_out(
    queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]
) -> None:
    """Its failure says why; nothing of it is decoded."""
    for _ in range(MOST_DEATHS):
        assert isinstance(try_alone(queue), Claim)
        queue.recover(ONE, bereft=True)
    claim = try_alone(queue)
    assert isinstance(claim, Malformed)
    assert isinstance(claim.error, CommandFailed)
    assert str(claim.error).startswith(f"{MOST_DEATHS} workers ended")


@pytest.mark.parametrize("found", [None, "no hash", "no number"])
def test_whatever_stands_at_the_jobs_key_the_partition_can_be_taken_over(
    queue: ClaimQueue, redis_client: Redis, jobs: list[bytes], found: str | None
) -> None:
    """Gone or spoilt meanwhile: nothing is made in its place."""
    try_alone(queue)
    job = keys.job(jobs[0].decode())
    if found == "no number":
        redis_client.hset(job, "deaths", found)
    else:
        redis_client.delete(job)
        if found is not None:
            redis_client.set(job, found)
    recovered = queue.recover(ONE, bereft=True)
    assert recovered is not None
    assert recovered.commands == 1
    assert isinstance(try_alone(queue), {None: Gone, "no hash": Malformed, "no number": Claim}[found])


def test_another_key_in_the_trials_place_is_removed(queue: ClaimQueue, redis_client: Redis, jobs: list[bytes]) -> None:
    queue.claim({ONE: 0}, 1)
    redis_client.set(keys.trials(1), "strange")
    recovered = queue.recover(ONE, bereft=True)
    assert recovered is not None
    assert (recovered.commands, recovered.again) == (1, False)
    assert redis_client.hgetall(keys.trials(1)) == {b"0": b""}
