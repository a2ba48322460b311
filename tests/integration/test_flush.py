"""Live owners, as worker and agent treat them: each case of the contract (CONTRACT, "Rules of `put`", 3 to 5)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from feedback import (
    Absent,
    FeedbackClient,
    FlushFailed,
    FlushUnanswered,
    Item,
    ItemList,
    LiveSessions,
    Ok,
    Put,
    Rejected,
    SessionIdentity,
    TargetNotFound,
    keys,
)
from feedback.partitions import Topology
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.harness import CREATED_AT, Placed, elsewhere, here, serving, settings_for, wait_until, write_session

pytestmark = pytest.mark.server

IDENTITY = SessionIdentity(created_at=CREATED_AT, cwd="/w")
PARTITION = Topology(generation=1, partitions=4, max_note_bytes=1).partition_of("s")
OTHER_LIFE = SessionIdentity(created_at=CREATED_AT + 1, cwd="/w")


class Host:
    """A host that holds one Session open and keeps its events in memory until it is told to flush."""

    def __init__(self, settings: Settings, session_id: str) -> None:
        self._settings = settings
        self._session_id = session_id
        self.unwritten: list[str] = []
        self.flushes = 0

    def flush(self) -> int | None:
        self.flushes += 1
        messages, self.unwritten = self.unwritten, []
        if not messages:
            return None
        with LogWriter(Path(self._settings.sessions), self._session_id, created_at=CREATED_AT, cwd="/w") as log:
            for message_id in messages:
                log.append(exchange(1, "Please?", "Here.", user_id=f"u-{message_id}", assistant_id=message_id))
            return log.next_seq


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    return settings_for(valkey_url, tmp_path, flush_timeout=0.3, max_attempts=2)


@pytest.fixture(params=[here, elsewhere], ids=["logs here", "by an agent"])
def client(request: pytest.FixtureRequest, settings: Settings) -> Iterator[FeedbackClient]:
    placed: Placed = request.param(settings)
    with (
        serving(placed.settings, agents=placed.agents),
        FeedbackClient.from_url(settings.redis_url, host=placed.host) as client,
    ):
        yield client


@pytest.fixture
def live(settings: Settings) -> Iterator[LiveSessions]:
    with LiveSessions.from_url(settings.redis_url) as live:
        yield live


def rated(result: object) -> bool:
    return isinstance(result, Ok) and isinstance(result.value, Item)


def missing(result: object) -> bool:
    return isinstance(result, Rejected) and isinstance(result.error, TargetNotFound)


def test_the_owner_flushes_before_its_message_is_judged(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    write_session(settings, "s", "m1")
    host = Host(settings, "s")
    host.unwritten.append("m2")
    with live.register("s", IDENTITY, host.flush):
        assert rated(client.put("s", "m2", "positive"))
    assert host.flushes == 1


def test_flushed_and_still_absent_is_target_not_found(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    write_session(settings, "s", "m1")
    host = Host(settings, "s")
    with live.register("s", IDENTITY, host.flush):
        assert missing(client.put("s", "m2", "positive"))
    assert host.flushes == 1


def test_a_session_that_was_never_written_exists_and_is_written_by_its_flush(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    host = Host(settings, "s")
    with live.register("s", IDENTITY, host.flush):
        assert client.list("s") == Ok(value=ItemList(items=()))
        assert client.delete("s", "m1", if_version=None) == Ok(value=Absent())
        assert host.flushes == 0, "only a put depends on the log"
        assert missing(client.put("s", "m1", "positive")), "nothing was there to flush"
        host.unwritten.append("m1")
        assert rated(client.put("s", "m1", "positive"))


def test_a_failing_flush_is_retried_and_then_fails_the_command(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    write_session(settings, "s", "m1")
    attempts = []

    def fail() -> int:
        attempts.append(1)
        raise OSError("disk full")

    with live.register("s", IDENTITY, fail):
        with pytest.raises(FlushFailed, match="disk full"):
            client.put("s", "m1", "positive")
        assert len(attempts) == settings.max_attempts


def test_a_flush_that_heals_lets_its_commands_through_in_order(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    write_session(settings, "s", "m1")
    attempts = []

    def fail_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("not now")

    with live.register("s", IDENTITY, fail_once):
        first, second, third = client.submit_many(
            [Put("s", "m1", "positive"), Put("s", "m1", "negative"), Put("s", "nope", "positive")]
        )
        assert rated(first.result())
        assert isinstance(second.result(), Rejected)
        assert missing(third.result())


def test_a_silent_owner_holds_up_its_own_session_only(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    write_session(settings, "s", "m1")
    write_session(settings, "neighbour", "m1")
    redis_client.hset(keys.live("s"), "owner", "silent")
    redis_client.hset(keys.live("s"), items=["session", "s", "created_at", CREATED_AT, "cwd", "/w"])
    redis_client.set(keys.owner("silent"), "1")
    stuck = client.submit(Put("s", "m1", "positive"))
    assert rated(client.put("neighbour", "m1", "positive"))
    with pytest.raises(FlushUnanswered):
        stuck.result()


def test_an_owner_of_another_life_is_not_asked(settings: Settings, client: FeedbackClient, live: LiveSessions) -> None:
    write_session(settings, "s", "m1")
    host = Host(settings, "s")
    with live.register("s", OTHER_LIFE, host.flush):
        assert rated(client.put("s", "m1", "positive"))
    assert host.flushes == 0


def test_an_identity_that_changes_under_the_flush_is_target_not_found(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    def written_by_another_life() -> None:
        write_session(settings, "s", "m1")

    with live.register("s", OTHER_LIFE, written_by_another_life):
        assert missing(client.put("s", "m1", "positive"))


def test_an_owner_that_lets_go_while_it_flushes_leaves_what_stands_on_disk(
    settings: Settings, client: FeedbackClient, live: LiveSessions
) -> None:
    write_session(settings, "s", "m1")
    host = Host(settings, "s")
    host.unwritten.append("m2")
    asked = threading.Event()

    def flush_and_let_go() -> int | None:
        asked.set()
        durable = host.flush()
        handle.close()
        return durable

    handle = live.register("s", IDENTITY, flush_and_let_go)
    assert rated(client.put("s", "m2", "positive"))
    assert asked.is_set()


def test_the_owners_word_alone_does_not_count(settings: Settings, client: FeedbackClient, live: LiveSessions) -> None:
    write_session(settings, "s", "m1")
    with live.register("s", IDENTITY, lambda: 1_000_000), pytest.raises(FlushFailed, match="1000000 events"):
        client.put("s", "m1", "positive")


def test_a_write_lock_that_nobody_registered_is_verified_on_disk(settings: Settings, client: FeedbackClient) -> None:
    with LogWriter(Path(settings.sessions), "s", created_at=CREATED_AT, cwd="/w") as log:
        log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
        assert rated(client.put("s", "m1", "positive"))


def test_commands_that_come_during_a_flush_wait_for_one_of_their_own(
    settings: Settings, client: FeedbackClient, live: LiveSessions, redis_client: Redis
) -> None:
    write_session(settings, "s", "m1")
    host = Host(settings, "s")
    flushing, go_on = threading.Event(), threading.Event()

    def flush_what_was_there_at_its_beginning() -> int | None:
        if flushing.is_set():
            return host.flush()
        flushing.set()
        go_on.wait()
        return None

    with live.register("s", IDENTITY, flush_what_was_there_at_its_beginning):
        first = client.submit(Put("s", "m1", "positive"))
        flushing.wait()
        host.unwritten.append("m2")
        second = client.submit(Put("s", "m2", "positive"))
        wait_until(lambda: redis_client.llen(keys.claimed(PARTITION)) == 2, "the second is claimed")
        go_on.set()
        assert rated(first.result())
        assert rated(second.result())
    assert host.flushes == 1
