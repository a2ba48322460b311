"""What Redis lost of a command, or somebody deleted: sent again by its id, it is answered; and it took effect once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis

from feedback import CommandIdReused, FeedbackClient, Put, keys
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import forget
from tests.integration.rq_jobs import partition_of, set_up
from tests.outcomes import stored_events

pytestmark = pytest.mark.server

SESSION = "s"


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, SESSION, "m1")
    set_up(redis_client, settings)
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


def put() -> Put:
    return Put(SESSION, "m1", "positive", command_id=str(uuid4()))


@pytest.mark.parametrize("list_of", [keys.queue, keys.claimed])
def test_a_command_whose_list_was_lost_is_sent_again(
    list_of: Callable[..., str], settings: Settings, redis_client: Redis, client: FeedbackClient
) -> None:
    """Its job alone does not count as waiting."""
    command, partition = put(), partition_of(settings, SESSION)
    client.submit(command)
    if list_of is keys.claimed:
        redis_client.lmove(keys.queue(partition), keys.claimed(partition))
    client.submit(command)
    assert redis_client.lrange(list_of(partition), 0, -1) == [str(command.command_id).encode()], "delivered twice"
    redis_client.delete(list_of(partition))
    with serving(settings, projector=False):
        assert client.submit(command).result().ok
    assert len(stored_events(settings)) == 1


def test_an_answer_that_was_lost_is_had_again(settings: Settings, redis_client: Redis, client: FeedbackClient) -> None:
    """By asking, and by sending the command again: to the letter, and without another effect."""
    command = put()
    with serving(settings):
        first = client.submit(command).result()
        redis_client.delete(keys.results(str(command.command_id)))
        assert client.result_of(str(command.command_id), timeout=4) == first
        assert client.submit(command).result() == first
    assert len(stored_events(settings)) == 1


def test_a_refused_use_of_an_id_does_not_keep_its_first_user_out(
    settings: Settings, redis_client: Redis, client: FeedbackClient
) -> None:
    """Redis forgot the first use, then refused another payload: the first one can still be sent again."""
    command = put()
    with serving(settings, projector=False):
        first = client.submit(command).result()
        forget(redis_client, str(command.command_id))
        with pytest.raises(CommandIdReused):
            client.put(SESSION, "m1", "negative", command_id=str(command.command_id))
        assert client.submit(command).result() == first
    assert not redis_client.exists(keys.failed_registry(partition_of(settings, SESSION)))


def test_a_worker_that_starts_on_a_full_server_waits(settings: Settings, redis_client: Redis) -> None:
    """It cannot write the topology yet: no reason to end."""
    redis_client.delete(keys.TOPOLOGY)
    refused = redis_client.info("stats")["total_error_replies"]
    redis_client.config_set("maxmemory", 1)
    try:
        with serving(settings, projector=False):
            wait_until(lambda: redis_client.info("stats")["total_error_replies"] > refused, "the worker was refused")
            redis_client.config_set("maxmemory", 0)
            wait_until(lambda: redis_client.exists(keys.TOPOLOGY), "the worker serves")
    finally:
        redis_client.config_set("maxmemory", 0)


@pytest.mark.parametrize("spoil", ["owners", "workers", "claimed", "events", "queue"])
def test_what_somebody_else_wrote_into_our_keys_stops_no_worker(
    spoil: str, settings: Settings, redis_client: Redis, client: FeedbackClient
) -> None:
    """By mistake, with the hands of an operator: what is not ours is passed over or removed."""
    partition = partition_of(settings, SESSION)
    with serving(settings, projector=False):
        assert client.put(SESSION, "m1", "positive").ok
        match spoil:
            case "owners":
                redis_client.hset(keys.owners(1), "x", b"\xff")
                redis_client.hset(keys.owners(1), str(partition.number), b"\xff")
            case "workers":
                redis_client.sadd(keys.WORKERS, b"\xff", "x")
                redis_client.set(keys.worker_session("x"), "soon")
            case _:
                key: str = getattr(keys, spoil)(partition)
                redis_client.delete(key)
                redis_client.set(key, "x")
        seen = redis_client.info("commandstats")["cmdstat_smembers"]["calls"]
        wait_until(
            lambda: redis_client.info("commandstats")["cmdstat_smembers"]["calls"] > seen + 2, "the worker looked at it"
        )
        if spoil == "queue":
            wait_until(lambda: redis_client.type(keys.queue(partition)) != b"string", "it is removed")
        assert client.put(SESSION, "m1", "negative").ok is False
