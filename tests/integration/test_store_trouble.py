"""The store is taken away or replaced under a running system: nothing is lost, nothing has to be started anew."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, FeedbackError, ItemList, Ok, Put
from feedback.settings import Settings
from persistence.session_log import SessionLogs
from tests.harness import serving, settings_for, wait_until, write_session
from tests.outcomes import assert_sound

pytestmark = pytest.mark.server


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=2)
    write_session(settings, "s", "m1", "m2")
    return settings


def leave_nothing(path: Path) -> None:
    del path


def put_garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def put_an_empty_file(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("replace", [leave_nothing, put_garbage, put_an_empty_file])
def test_a_store_that_is_another_file_for_a_while_is_waited_for(
    replace: Callable[[Path], None], settings: Settings, redis_client: Redis, tmp_path: Path
) -> None:
    """Worker and projector go on when the right one is back; what was asked meanwhile is answered then."""
    path, away = tmp_path / "sidecar.sqlite3", tmp_path / "away"
    with serving(settings), FeedbackClient.from_url(settings.redis_url) as client:
        first = client.submit(Put("s", "m1", "positive"))
        assert first.result().ok
        path.rename(away)
        replace(path)
        second = client.submit(Put("s", "m2", "positive"))
        with pytest.raises(FeedbackError):
            client.list("s", timeout=0.5)
        path.unlink(missing_ok=True)
        away.rename(path)
        assert second.result().ok

        assert rated(client) == ["m1", "m2"]
        wait_until(lambda: redis_client.exists("feedback:list-era"), "the projector follows")
    assert_sound(redis_client, settings, [first.command_id, second.command_id])


def test_a_store_that_went_back_fences_who_knew_more(
    settings: Settings, redis_client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older copy, or a standby that lagged behind: what was lost is lost, but no command fails for it, and no list
    shows it any more, whoever remembers it and whatever has its revision now."""
    logs = SessionLogs(Path(settings.sessions))
    with (
        serving(settings),
        FeedbackClient.from_url(settings.redis_url) as client,
        FeedbackClient.from_url(settings.redis_url, logs=logs) as near,
    ):
        assert client.put("s", "m1", "positive").ok
        for reader in (client, near, client, near):
            assert rated(reader) == ["m1"]
        lose_everything(tmp_path)
        assert client.put("s", "m2", "positive").ok
        for reader in (near, client, near, client):
            assert rated(reader) == ["m2"]
    assert "fenced off" in caplog.text
    assert "the store has lost" in caplog.text, "an operator is told, by who notices first"


def test_events_of_lost_commits_are_gone_before_their_sequences_are_used_again(
    settings: Settings, redis_client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No projector runs meanwhile: one that comes later could not tell them from those that followed."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        with serving(settings, projector=False):
            assert client.put("s", "m1", "positive").ok
            lose_everything(tmp_path)
            assert client.put("s", "m2", "positive").ok
            assert [redis_client.xlen(key) for key in redis_client.keys("feedback:events:*")] == [1]
        assert "their events are taken back" in caplog.text, "an operator is told"
        with serving(settings):
            assert rated(client) == ["m2"]


def lose_everything(directory: Path) -> None:
    """The store goes back to where nothing was stored."""
    with closing(sqlite3.connect(directory / "sidecar.sqlite3")) as store, store:
        store.executescript("DELETE FROM command; DELETE FROM item")
        store.executescript("UPDATE fence SET sequence = 0; UPDATE session SET revision = 0")


def rated(client: FeedbackClient) -> list[str]:
    """The messages of a list."""
    listed = client.list("s")
    assert isinstance(listed, Ok)
    assert isinstance(listed.value, ItemList)
    return [item.message_id for item in listed.value.items]
