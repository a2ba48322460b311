"""Disks fill up, fail and come back under load: whoever has trouble says so, heals by itself, and loses nothing."""

import errno
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import LiveSessions, LogUnreadable, Put, SessionIdentity, keys
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.acceptance.ailing import SESSIONS, SICK, Ailing, ailing
from tests.acceptance.command_line import feedback
from tests.faulty_disk import HALF, FaultyDisk, SmallDisk
from tests.harness import CREATED_AT, settings_for, wait_until
from tests.integration.rq_jobs import partition_of

pytestmark = [pytest.mark.server, pytest.mark.process]

WELL = tuple(session_id for session_id in SESSIONS if session_id != SICK)
STORE = "sidecar.sqlite3"


def settings_of(url: str, home: Path, **more: object) -> Settings:
    usual: dict[str, object] = {"lease_ttl": 1.0, "max_attempts": 1000, "event_retention": 1_000_000}
    return settings_for(url, home, **usual | more)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small", 4 * 2**20)
    yield disk
    disk.unmount()


@pytest.fixture
def system(valkey_url: str, redis_client: Redis, disk: FaultyDisk, tmp_path: Path) -> Iterator[Ailing]:
    with ailing(redis_client, settings_of(valkey_url, tmp_path), tmp_path, disk.variables) as system:
        yield system


def begin_its_log_anew(store: sqlite3.Connection) -> None:
    """Bring everything into the main file; then every connection reads anew what it had in its page cache."""
    wait_until(lambda: store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "nobody is in the way")


class TestStore:
    @pytest.mark.parametrize(
        ("calls", "error", "words"),
        [
            ("sync", errno.EIO, "Input/output error"),
            ("open write", errno.EROFS, "Read-only file system"),
            pytest.param("write", errno.EIO, "I/O error", marks=pytest.mark.chaos),
            # A disk that is really full is tested below.
            pytest.param("write", errno.ENOSPC, "no space left", marks=pytest.mark.chaos),
        ],
    )
    def test_that_cannot_be_written(self, system: Ailing, disk: FaultyDisk, calls: str, error: int, words: str) -> None:
        """By an error at every write or sync. Commands wait."""
        disk.fails(calls, error, STORE)
        system.is_in_trouble("StoreUnavailable", words)
        disk.works()
        system.heals()

    def test_that_cannot_be_read(self, system: Ailing, disk: FaultyDisk, tmp_path: Path) -> None:
        """Neither by the worker nor by the projector, once it is not what they remember of it any more."""
        disk.fails("read", errno.EIO, STORE)
        with closing(sqlite3.connect(tmp_path / STORE, isolation_level=None)) as other:
            begin_its_log_anew(other)
        system.is_in_trouble("StoreUnavailable", "I/O error", "worker projector")
        disk.works()
        system.heals()

    def test_on_a_disk_that_is_full(
        self, valkey_url: str, redis_client: Redis, small: SmallDisk, tmp_path: Path
    ) -> None:
        """Really full, so that a write ends in its middle."""
        settings = settings_of(valkey_url, tmp_path, sidecar_url=f"sqlite:///{small.path / STORE}")
        with ailing(redis_client, settings, tmp_path, {}) as system:
            small.fill()
            system.is_in_trouble("StoreUnavailable", "no space left")
            small.make_room()
            system.heals()

    def test_that_is_locked(self, system: Ailing, tmp_path: Path) -> None:
        """By a program that holds it for longer than anybody waits."""
        with closing(sqlite3.connect(tmp_path / STORE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            system.is_in_trouble("StoreUnavailable", "locked by another process for too long")
            other.execute("ROLLBACK")
        system.heals()

    def test_that_is_damaged(self, system: Ailing, tmp_path: Path) -> None:
        """All its pages but the first, in place; an operator puts them back."""
        path = tmp_path / STORE
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            begin_its_log_anew(other)
            other.execute("BEGIN IMMEDIATE")
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.seek(4096)
                file.write(b"\xa5" * (len(content) - 4096))
            other.execute("ROLLBACK")
        system.is_in_trouble("StoreUnavailable", "corrupt", "worker projector")
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(content[4096:])
        system.heals()


@pytest.mark.parametrize("error", [HALF, errno.EINTR])
def test_calls_that_do_half_of_what_they_should_or_are_interrupted_are_no_trouble(
    system: Ailing, disk: FaultyDisk, error: int
) -> None:
    disk.fails("read write", error, STORE, "/sessions/")
    for session_id in SESSIONS:
        system.grow(session_id)
    system.serves(*SESSIONS)
    assert system.troubles("") == []
    system.heals()


class TestSessionLog:
    @pytest.mark.parametrize("call", ["sync", "read"])
    def test_that_fails_holds_up_its_own_session_only(self, system: Ailing, disk: FaultyDisk, call: str) -> None:
        disk.fails(call, errno.EIO, f"/{SICK}/")
        # What is read and synced already needs neither: let it grow.
        system.grow(SICK)
        system.is_in_trouble("LogUnreadable", "Input/output error")
        waiting = len(system.tickets[SICK])
        system.serves(*WELL)
        assert len(system.tickets[SICK]) > waiting
        disk.works()
        system.heals()

    def test_whose_root_is_taken_away_answers_for_none(self, system: Ailing, tmp_path: Path) -> None:
        """As if it were not mounted: no caller is told that a Session does not exist."""
        root, away = tmp_path / "sessions", tmp_path / "away"
        root.rename(away)
        system.is_in_trouble("LogUnreadable", "Sessions that wait")
        away.rename(root)
        system.heals()

    # Whether a connection is open on which the trouble can be told is chance.
    @pytest.mark.chaos
    def test_that_cannot_be_opened_for_want_of_descriptors(self, system: Ailing) -> None:
        """The worker may open nothing more for a while, perhaps not even a connection to the server."""
        worker = system.running["worker"].pid
        assert worker is not None
        usual = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, usual[1]))
        system.grow(SICK)
        system.is_in_trouble("LogUnreadable ConnectionError", "Too many open files")
        resource.prlimit(worker, resource.RLIMIT_NOFILE, usual)
        system.heals()

    def test_that_fails_for_too_long_fails_its_commands_visibly(
        self, valkey_url: str, redis_client: Redis, disk: FaultyDisk, tmp_path: Path
    ) -> None:
        """One by one, after so many tries; when the disk is back they can be retried, all at once."""
        settings = settings_of(valkey_url, tmp_path, max_attempts=2)
        with ailing(redis_client, settings, tmp_path, disk.variables) as system:
            disk.fails("read", errno.EIO, f"/{SICK}/")
            system.grow(SICK)
            registry = keys.failed_registry(partition_of(settings, SICK))
            wait_until(lambda: redis_client.zcard(registry) > 3, "commands are given up")
            failed: list[bytes] = redis_client.zrange(registry, 0, 0)  # type: ignore[assignment]  # redis-py types both its clients as one
            with pytest.raises(LogUnreadable):
                system.client.result_of(failed[0].decode())
            system.serves(*WELL)
            disk.works()
            system.serves(SICK)
            answer = feedback("dlq", "retry", "--all", env={"FEEDBACK_REDIS_URL": valkey_url})
            assert answer.code == 0, answer
            wait_until(lambda: not redis_client.exists(registry), "none is left")
            system.heals()

    def test_whose_owner_cannot_write_it_waits_for_its_owner(
        self, valkey_url: str, redis_client: Redis, small: SmallDisk, tmp_path: Path
    ) -> None:
        """The hosts' disk is full, so that a live Session is not flushed; logs that are complete are served."""
        settings = settings_of(valkey_url, tmp_path, sessions=str(small.path))
        with (
            ailing(redis_client, settings, tmp_path, {}) as system,
            LogWriter(small.path, "live", created_at=CREATED_AT, cwd="/w") as log,
            LiveSessions.from_url(valkey_url) as live,
        ):

            def flush() -> int:
                if log.next_seq == 0:
                    log.append(exchange(1, "Please?", "Here." * 1000, user_id="u1", assistant_id="m1"))
                return log.next_seq

            with live.register("live", SessionIdentity(created_at=CREATED_AT, cwd="/w"), flush):
                small.fill()
                ticket = system.client.submit(Put("live", "m1", "positive"))
                system.tickets["live"].append(ticket)
                system.is_in_trouble("FlushFailed", "No space left")
                system.serves(*SESSIONS)
                small.make_room()
                assert ticket.result().ok
                system.heals()
