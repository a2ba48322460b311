"""Logs that change while a command about them is under way (FAULTS: L3, L4)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, LiveSessions, SessionIdentity
from feedback.crashpoints import CrashPoint
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.harness import CREATED_AT, serving, settings_for
from tests.integration.rating import item_of, items_of
from tests.outcomes import stored_events
from worker import engine

pytestmark = pytest.mark.server

SESSION = "s"
FIRST_LIFE = SessionIdentity(created_at=CREATED_AT, cwd="/w")


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    return settings_for(valkey_url, tmp_path)


def log_of(settings: Settings) -> Path:
    (log,) = Path(settings.sessions).rglob("session*.jsonl")
    return log


def migrate(settings: Settings) -> None:
    """The owner publishes the log's next generation, and removes the one before."""
    log = log_of(settings)
    staged = log.with_name("staged")
    staged.write_bytes(log.read_bytes().replace(b'"version":0', b'"version":2,"isSeeded":false', 1))
    staged.rename(log.with_name("session.v2.jsonl"))
    log.unlink()


def replace(settings: Settings) -> None:
    """A log of another life is renamed over it: the same id, and the same message."""
    write(Path(settings.sessions).with_name("elsewhere"), CREATED_AT + 1).rename(log_of(settings))


def link(settings: Settings) -> None:
    """As above, by a symbolic link in its place."""
    log = log_of(settings)
    log.unlink()
    log.symlink_to(write(Path(settings.sessions).with_name("elsewhere"), CREATED_AT + 1))


def write(root: Path, created_at: int) -> Path:
    with LogWriter(root, SESSION, created_at=created_at, cwd="/w", compression="none") as log:
        log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
    return log.path


@pytest.mark.parametrize("change", [migrate, replace, link])
def test_feedback_is_of_the_life_that_was_looked_at(
    change: Callable[[Settings], None], settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message was there when the log was read, and the log changes before the commit.

    The next generation of the same Session goes on with the feedback; another life under its id has none of it, and
    gives nobody's feedback away.
    """
    changed = False

    def reach(point: CrashPoint) -> None:
        nonlocal changed
        if point is CrashPoint.BEFORE_COMMIT and not changed:
            changed = True
            change(settings)

    monkeypatch.setattr(engine, "reach", reach)
    write(Path(settings.sessions), CREATED_AT)
    with serving(settings), FeedbackClient.from_url(settings.redis_url) as client:
        given = item_of(client.put(SESSION, "m1", "positive"))
        assert changed
        (event,) = stored_events(settings)
        assert event.session == FIRST_LIFE
        listed = items_of(client.list(SESSION, at_least=1))
        assert listed == ((given,) if change is migrate else ())
        if change is not migrate:
            item_of(client.put(SESSION, "m1", "negative"))  # made anew, under nobody's version
            (own,) = items_of(client.list(SESSION, at_least=2))
            assert own.rating == "negative"


def test_a_log_may_be_migrated_by_the_flush_that_was_asked_for(settings: Settings, redis_client: Redis) -> None:
    """It is found anew when the owner has answered."""
    log = write(Path(settings.sessions), CREATED_AT)

    def flush() -> None:
        if log.exists():
            migrate(settings)

    with (
        serving(settings, projector=False),
        FeedbackClient.from_url(settings.redis_url) as client,
        LiveSessions.from_url(settings.redis_url) as live,
        live.register(SESSION, FIRST_LIFE, flush),
    ):
        assert item_of(client.put(SESSION, "m1", "positive")).message_id == "m1"
    assert not log.exists()
