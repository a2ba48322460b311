"""The store is taken away or replaced under a running system: nothing is lost, nothing has to be started anew."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, FeedbackError, ItemList, Ok, Put
from feedback.settings import Settings
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

        def items() -> int:
            listed = client.list("s")
            assert isinstance(listed, Ok)
            assert isinstance(listed.value, ItemList)
            return len(listed.value.items)

        assert items() == 2
        wait_until(lambda: redis_client.exists("feedback:list-era"), "the projector follows")
    assert_sound(redis_client, settings, [first.command_id, second.command_id])


def test_a_store_that_went_back_fences_who_knew_more(
    settings: Settings, redis_client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older copy, or a standby that lagged behind: what was lost is lost, but no command fails for it."""
    with serving(settings, projector=False), FeedbackClient.from_url(settings.redis_url) as client:
        lost = client.put("s", "m1", "positive")
        assert lost.ok
        with closing(sqlite3.connect(tmp_path / "sidecar.sqlite3")) as store, store:
            store.executescript("UPDATE fence SET sequence = 0; DELETE FROM command; DELETE FROM item")
        assert client.put("s", "m2", "positive").ok
    assert "fenced off" in caplog.text
    assert "lost commits that were published" in caplog.text, "an operator is told"
