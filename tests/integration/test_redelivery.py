"""Commands that are delivered a hundred times, or in another order than they were sent in (FAULTS: D1, D3)."""

from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, Item, Ok, Put, Rejected, VersionConflict, keys
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import item_of
from tests.integration.rq_jobs import entries, partition_of
from tests.outcomes import assert_sound, is_idle

pytestmark = pytest.mark.server

SESSION = "s"


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, SESSION, "m1", "m2")
    return settings


def test_a_hundred_copies_take_effect_once(settings: Settings, redis_client: Redis) -> None:
    """Beside each other, before and behind other commands; each copy is answered to the letter."""
    queue = keys.queue(partition_of(settings, SESSION))
    with FeedbackClient.from_url(settings.redis_url) as client:
        with serving(settings, projector=False):
            first = client.submit(Put(SESSION, "m2", "positive"))
            version = item_of(first.result()).version
        tickets = client.submit_many([Put(SESSION, "m1", "positive"), Put(SESSION, "m2", "negative", None, version)])
        for ticket in tickets:
            redis_client.rpush(queue, *[ticket.command_id] * 50)
            redis_client.lpush(queue, *[ticket.command_id] * 50)
        with serving(settings, projector=False):
            assert sorted(ticket.result().revision or 0 for ticket in tickets) == [2, 3]
            wait_until(lambda: is_idle(redis_client, settings), "every copy is acknowledged")
    for ticket in tickets:
        assert len({fields[b"return_value"] for fields in entries(redis_client, keys.results(ticket.command_id))}) == 1
    assert_sound(redis_client, settings, [ticket.command_id for ticket in (first, *tickets)])


def test_of_commands_that_change_places_the_version_decides(settings: Settings, redis_client: Redis) -> None:
    """The later one comes first: it is applied, and the other one is told what stands there."""
    queue = keys.queue(partition_of(settings, SESSION))
    with FeedbackClient.from_url(settings.redis_url) as client:
        with serving(settings, projector=False):
            version = item_of(client.put(SESSION, "m1", "positive")).version
        sooner, later = client.submit_many(Put(SESSION, "m1", "negative", note, version) for note in ("1", "2"))
        assert redis_client.lmove(queue, queue, "LEFT", "RIGHT") == sooner.command_id.encode()
        with serving(settings, projector=False):
            applied, refused = later.result(), sooner.result()
    assert isinstance(applied, Ok)
    assert isinstance(applied.value, Item)
    assert applied.value.note == "2"
    assert isinstance(refused, Rejected)
    assert refused.error == VersionConflict(current=applied.value)
