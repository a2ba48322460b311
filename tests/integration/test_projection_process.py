"""The projector as a whole: real logs, a real store, a server that restarts, forgets, or refuses."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from app.embedded import DURABLE, VOLATILE, EmbeddedServer
from feedback import keys
from feedback.client import FeedbackClient
from feedback.connection import connect
from feedback.errors import LogCorrupt, QueueUnavailable, SettingsInvalid, StoreForeign
from feedback.results import ItemList, Ok, Rejected, SessionNotFound
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from persistence.sidecar import SqliteStore
from projections.process import run_projector
from tests.integration.projecting import LIFE, Deployment, wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        yield store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the logs of Sessions s1 and s2, whose life is `LIFE`."""
    for session_id in ("s1", "s2"):
        write_log(tmp_path / "sessions", session_id)
    return tmp_path / "sessions"


def write_log(root: Path, session_id: str) -> Path:
    with LogWriter(root, session_id, created_at=LIFE.created_at, cwd=LIFE.cwd, compression="none") as writer:
        writer.append(exchange(1, "question", "answer", user_id="u1", assistant_id="m1"))
        return writer.path


def settings(url: str, root: Path) -> Settings:
    sidecar = root.parent / "sidecar.sqlite3"
    return Settings(max_note_bytes=8192, redis_url=url, sidecar_url=f"sqlite:///{sidecar}", sessions=str(root))


@contextmanager
def projector(settings: Settings) -> Iterator[None]:
    """A running projector; what it raises is raised at the end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_projector(settings, stop)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive(), "the projector does not stop"
        assert not failures, failures


def listed(client: FeedbackClient, session_id: str) -> list[str]:
    result = client.list(session_id)
    assert isinstance(result, Ok)
    assert isinstance(result.value, ItemList)
    return [item.message_id for item in result.value.items]


@pytest.mark.parametrize("protocol", [2, 3])
def test_follows_and_answers(
    valkey_url: str, redis_client: Redis, store: SqliteStore, root: Path, protocol: int
) -> None:
    """Lists are kept up to date and answered for Sessions that have a log; odd ids name nothing."""
    deployment = Deployment(redis_client, store)
    with projector(settings(f"{valkey_url}?protocol={protocol}", root)), FeedbackClient.from_url(valkey_url) as client:
        deployment.settle()
        assert listed(client, "s1") == []
        deployment.put("s1", "m1")
        assert listed(client, "s1") == ["m1"]
        deployment.settle()
        assert deployment.cached("s1") == {"s1": deployment.view("s1")}
        for session_id in ("", "..", "../s1", "/", "s1\x00", "Ünï/cödé", "x" * 10_000):
            assert client.list(session_id) == Rejected(error=SessionNotFound(session_id=session_id))


def test_a_corrupt_log_fails_only_its_own_session(
    valkey_url: str, redis_client: Redis, store: SqliteStore, root: Path
) -> None:
    """Typed, with the path; the other Session is answered."""
    Deployment(redis_client, store).put("s2", "m1")
    path = write_log(root, "s3")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((*lines[:2], *lines[3:])))
    with projector(settings(valkey_url, root)), FeedbackClient.from_url(valkey_url) as client:
        with pytest.raises(LogCorrupt) as caught:
            client.list("s3")
        assert caught.value.path == str(path)
        assert listed(client, "s2") == ["m1"]


@pytest.mark.parametrize("durability", ["durable", "forgetful"])
def test_server_restart_while_it_runs(tmp_path: Path, store: SqliteStore, root: Path, durability: str) -> None:
    """The projector reconnects, notices what the server forgot, and goes on."""
    server = EmbeddedServer(tmp_path / "valkey", DURABLE if durability == "durable" else VOLATILE)
    server.start()
    try:
        with connect(server.url) as redis, projector(settings(server.url, root)):
            deployment = Deployment(redis, store)
            deployment.put("s1", "m1")
            deployment.settle()
            server.stop()
            deployment.put("s1", "m2", publish=False)
            server.start()
            deployment.announce()
            deployment.put("s1", "m3", publish=False)
            deployment.settle()
            deployment.put("s1", "m4")
            deployment.settle()
            assert deployment.cached("s1") == {"s1": deployment.view("s1")}
            with FeedbackClient.from_url(server.url) as client:
                assert listed(client, "s1") == ["m1", "m2", "m3", "m4"]
    finally:
        server.stop()


def test_flushall_while_it_answers(valkey_url: str, redis_client: Redis, store: SqliteStore, root: Path) -> None:
    """Redis forgets everything, topology included: lists are answered as before."""
    deployment = Deployment(redis_client, store)
    with projector(settings(valkey_url, root)), FeedbackClient.from_url(valkey_url) as client:
        for number in range(5):
            deployment.put("s1", f"m{number}")
            redis_client.flushall()
            assert listed(client, "s1") == [f"m{other}" for other in range(number + 1)]
        deployment.announce()
        deployment.settle()


def test_starts_before_everything_else(tmp_path: Path, root: Path) -> None:
    """No server, no topology, no worker ever: it waits, and serves as soon as it can."""
    server = EmbeddedServer(tmp_path / "valkey", VOLATILE)
    server.start()
    url = server.url
    server.stop()
    try:
        with projector(settings(url, root)):
            server.start()
            assert server.url == url
            with FeedbackClient.from_url(url) as client:
                assert listed(client, "s1") == []
    finally:
        server.stop()


def test_a_failing_part_stops_the_process(valkey_url: str, redis_client: Redis, store: SqliteStore, root: Path) -> None:
    """The follower refuses a foreign store; the responder ends with it, and the reason is raised."""
    Deployment(redis_client, store)
    redis_client.hset(keys.TOPOLOGY, "partitions", 7)
    stop = threading.Event()
    with pytest.raises(SettingsInvalid, match="different deployments"):
        run_projector(settings(valkey_url, root), stop)
    assert stop.is_set()


def test_a_user_without_rights_is_an_error(
    valkey_url: str, redis_client: Redis, store: SqliteStore, root: Path
) -> None:
    """What no waiting heals is raised at once."""
    Deployment(redis_client, store)
    redis_client.execute_command("ACL", "SETUSER", "nobody", "on", ">secret", "~*", "+@connection")
    try:
        with pytest.raises(RedisError, match="permissions"):
            run_projector(settings(valkey_url.replace("//", "//nobody:secret@"), root), threading.Event())
    finally:
        redis_client.execute_command("ACL", "DELUSER", "nobody")


def test_what_cannot_be_opened_is_said_at_start(valkey_url: str, tmp_path: Path, root: Path) -> None:
    """A sidecar that is not ours, a URL that is none."""
    (tmp_path / "sidecar.sqlite3").write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(StoreForeign):
        run_projector(settings(valkey_url, root), threading.Event())
    (tmp_path / "sidecar.sqlite3").unlink()
    with pytest.raises(QueueUnavailable):
        run_projector(settings("nonsense://", root), threading.Event())


def test_readonly_server_is_waited_out(tmp_path: Path, store: SqliteStore, root: Path) -> None:
    """A server that became a replica refuses writes; the projector waits until it is a primary again."""
    server = EmbeddedServer(tmp_path / "valkey", VOLATILE)
    server.start()
    try:
        with connect(server.url) as redis, projector(settings(server.url, root)):
            deployment = Deployment(redis, store)
            deployment.put("s1", "m1")
            deployment.settle()
            redis.execute_command("REPLICAOF", "127.0.0.1", "1")
            deployment.put("s1", "m2", publish=False)
            wait_until(lambda: redis.info("replication")["role"] == "slave", "the server is a replica")
            redis.execute_command("REPLICAOF", "NO", "ONE")
            deployment.settle()
            with FeedbackClient.from_url(server.url) as client:
                assert listed(client, "s1") == ["m1", "m2"]
    finally:
        server.stop()
