"""Workers whose clocks are wrong: times that are stored are data, and nothing is ordered or owned by them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis

from feedback import CommandExpired, FeedbackClient, InvalidRequest, Item
from feedback.calls import wall_clock_ms
from feedback.model import Rating
from feedback.settings import Settings
from tests.harness import serving, settings_for, write_session
from tests.integration.rating import forget, item_of
from tests.integration.rq_jobs import put_command, request_of
from tests.outcomes import assert_sound, stored_events

pytestmark = pytest.mark.server

SESSION = "s"
HOUR_MS = 3_600_000
RATINGS: tuple[Rating, ...] = ("positive", "negative")
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=1)
    write_session(settings, SESSION, "m1", "m2")
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


def off_by(ms: int) -> Callable[[], int]:
    return lambda: wall_clock_ms() + ms


@pytest.mark.parametrize("first_ms", [-HOUR_MS, HOUR_MS])
def test_an_hour_changes_nothing_but_times(
    first_ms: int, settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    """One worker after the other, an hour ahead or behind: revisions are dense, and no time goes back."""
    ids: list[str] = []
    items: list[Item] = []
    for clock_ms in (off_by(first_ms), wall_clock_ms, off_by(-first_ms), wall_clock_ms):
        with serving(settings, projector=False, clock_ms=clock_ms):
            for rating in RATINGS:
                version = items[-1].version if items else None
                ids.append(str(uuid4()))
                items.append(item_of(client.put(SESSION, "m1", rating, if_version=version, command_id=ids[-1])))
    assert [item.updated_at for item in items] == sorted(item.updated_at for item in items)
    assert len({item.created_at for item in items}) == 1
    assert_sound(redis_client, settings, ids)


@pytest.mark.parametrize("off", [(TEN_YEARS_MS, CommandExpired), (-TEN_YEARS_MS, InvalidRequest)], ids=["+", "-"])
def test_ten_years_refuse_and_forget_nothing(
    off: tuple[int, type[Exception]],
    settings: Settings,
    client: FeedbackClient,
    redis_client: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that far off finds every deadline past, or absurd, and says so; it applies nothing.

    Nor does it forget what was applied, whose copies may still be delivered to a worker that knows the time.
    """
    years_ms, refusal = off
    monkeypatch.setattr("worker.loop._PRUNE_EVERY_S", 0.0)
    before = put_command(SESSION, "m1")
    with serving(settings, projector=False):
        answer = client.submit(request_of(before)).result()
    refused = [put_command(SESSION, "m2") for _ in range(3)]
    with serving(settings, projector=False, clock_ms=off_by(years_ms)):
        for command in refused:
            with pytest.raises(refusal):
                client.submit(request_of(command)).result()
    for command in (before, *refused):
        forget(redis_client, command.command_id)
    with serving(settings):
        assert client.submit(request_of(before)).result() == answer
        for command in refused if refusal is CommandExpired else ():
            # It was said that it never will be applied, which the store knows when Redis has forgotten it.
            with pytest.raises(CommandExpired):
                client.result_of(command.command_id)
            with pytest.raises(CommandExpired):
                client.submit(request_of(command)).result()
        assert client.put(SESSION, "m2", "positive").ok
    assert [event.revision for event in stored_events(settings)] == [1, 2]
