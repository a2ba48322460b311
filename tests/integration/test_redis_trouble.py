"""A server that refuses for a while, whatever the reason: nobody exits, nobody spins, and all go on by themselves."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from app.embedded import EmbeddedServer
from feedback import AsyncFeedbackClient, FeedbackClient, Result
from feedback.connection import connect
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.integration.rq_jobs import put_command, request_of
from tests.outcomes import assert_sound
from tests.processes import kill

pytestmark = pytest.mark.server

SESSION = "s"
SYSTEM = ("system", "on", ">secret", "~*", "&*", "+@all")
"""The user that worker and projector are, and its rights."""
BEATS = 5
"""Heartbeats that fail while a trouble lasts."""
TROUBLES = ("misconf", "readonly", "oom", "noperm", "wrongpass", "maxclients", "busy", "restarting")
MOST_A_BEAT = 30
"""Refusals and connections of a worker, a projector and two clients in the fifth part of a second."""


class Server:
    """A server of its own, whose data can be saved; `system` is the user that worker and projector are."""

    def __init__(self, home: Path) -> None:
        self._home = home
        home.mkdir()
        (home / "users").write_text(f"user default on nopass ~* &* +@all\nuser {' '.join(SYSTEM)}\n", encoding="ascii")
        slow_to_load = {"key-load-delay": "4000", "loading-process-events-interval-bytes": "1024"}
        saved = {"appendonly": "no", "save": "3600 1000000", "aclfile": str(home / "users")}
        self.embedded = EmbeddedServer(home, saved | slow_to_load)
        self.embedded.start()
        self.admin: Redis = connect(self.embedded.url)

    def _let_the_system_in(self) -> None:
        self.admin.execute_command("ACL", "SETUSER", *SYSTEM)

    @property
    def system_url(self) -> str:
        return self.embedded.url.replace("redis://", "redis://system:secret@")

    def troubled(self) -> int:
        """Refusals and connections since it started: who spins has many of either."""
        stats: Mapping[str, int] = self.admin.info("stats")
        return sum(
            stats[name] for name in ("total_error_replies", "total_connections_received", "rejected_connections")
        )

    def connections(self) -> int:
        return int(self.admin.info("clients")["connected_clients"])

    @contextmanager
    def misconf(self) -> Iterator[None]:
        """It cannot save its data, and takes no writes."""
        in_the_way = self._home / "dump.rdb"
        in_the_way.mkdir()
        self._save("err")
        yield
        in_the_way.rmdir()
        self._save("ok")

    def _save(self, status: str) -> None:
        self.admin.bgsave()
        wait_until(lambda: self.admin.info("persistence")["rdb_last_bgsave_status"] == status, f"saving: {status}")

    @contextmanager
    def readonly(self) -> Iterator[None]:
        """It is a replica for a while, of nobody who answers."""
        self.admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        yield
        self.admin.execute_command("REPLICAOF", "NO", "ONE")

    @contextmanager
    def oom(self) -> Iterator[None]:
        self.admin.config_set("maxmemory", 1)
        yield
        self.admin.config_set("maxmemory", 0)

    @contextmanager
    def noperm(self) -> Iterator[None]:
        """A rule is changed by mistake."""
        self.admin.execute_command("ACL", "SETUSER", "system", "-@all", "+@connection")
        yield
        self._let_the_system_in()

    @contextmanager
    def wrongpass(self) -> Iterator[None]:
        """Its user is switched off, and its connections are ended."""
        self.admin.execute_command("ACL", "SETUSER", "system", "off")
        self.admin.execute_command("CLIENT", "KILL", "USER", "system")
        yield
        self._let_the_system_in()

    @contextmanager
    def maxclients(self) -> Iterator[None]:
        """Somebody else has all the connections that there are."""
        self.admin.config_set("maxclients", 1)
        self.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield
        self.admin.config_set("maxclients", 10_000)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Somebody's script does not end."""
        self.admin.config_set("busy-reply-threshold", 1)
        with connect(self.embedded.url, timeout_s=60) as other, ThreadPoolExecutor(1) as threads:
            endless = threads.submit(other.eval, "while true do end", 0)
            try:
                yield
            finally:
                self.admin.script_kill()
            assert isinstance(endless.exception(), RedisError)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """It is killed; what it had saved takes long to load, and meanwhile it answers LOADING."""
        self.restart()
        assert self.admin.info("errorstats")["errorstat_LOADING"]["count"] > 0
        yield

    def restart(self, while_loading: Callable[[], None] = lambda: None) -> None:
        """Kill it, and start it with much to load; the caller is called once, when that has begun."""
        with self.admin.pipeline(transaction=False) as pipeline:
            for number in range(400):
                pipeline.set(f"other:{number}", bytes(2048))
            pipeline.execute()
        self.admin.save()
        assert self.embedded.child is not None
        kill(self.embedded.child)
        self.embedded.stop()
        called = False

        def call() -> bool:
            nonlocal called
            with suppress(RedisError):
                if not called and self.admin.info("persistence")["loading"]:
                    called = True
                    while_loading()
            return False

        self.embedded.start(cancelled=call)
        assert called, "it was loaded at once"

    def close(self) -> None:
        self.admin.close()
        self.embedded.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    settings = settings_for(server.system_url, tmp_path, lease_ttl=1.0)
    write_session(settings, SESSION, "m1", "m2", "m3")
    return settings


def failed_beats(caplog: pytest.LogCaptureFixture) -> int:
    return sum("heartbeat failed" in message for message in list(caplog.messages))


def asked_by_asyncio(url: str, revision: int) -> Result:
    async def ask() -> Result:
        async with AsyncFeedbackClient.from_url(url) as client:
            await client.list(SESSION)
            return await client.list(SESSION, at_least=revision, timeout=60)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "trouble", ["misconf", "readonly", "oom", "noperm", "wrongpass", "maxclients", "busy", "restarting"]
)
def test_trouble_is_waited_for_with_backoff(
    trouble: str, server: Server, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks meanwhile is answered after it. Nobody has asked the server more than now and then."""
    caplog.set_level(logging.WARNING)
    commands = [put_command(SESSION, message_id) for message_id in ("m1", "m2", "m3")]
    first, meanwhile, after = map(request_of, commands)
    with (
        serving(settings),
        FeedbackClient.from_url(server.embedded.url) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        assert client.submit(first).result().ok
        assert items_of(client.list(SESSION, at_least=1))
        asked: list[Future[Result]] = [threads.submit(asked_by_asyncio, server.embedded.url, 2)]
        begun, beats = 0 if trouble == "restarting" else server.troubled(), failed_beats(caplog)
        with getattr(server, trouble)():
            asked.append(threads.submit(lambda: client.submit(meanwhile, timeout=60).result(60)))
            wait_until(lambda: trouble == "restarting" or failed_beats(caplog) >= beats + BEATS, "the trouble lasts")
            lasted = failed_beats(caplog) - beats
        assert server.troubled() - begun <= MOST_A_BEAT * lasted, "somebody spins"
        assert all(one.result().ok for one in asked)
        assert client.submit(after).result().ok
        assert_sound(server.admin, settings, [command.command_id for command in commands])


def test_a_server_that_loads_its_data_is_no_wrong_url(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes for the first time meanwhile waits as long as it takes, and does not give it up as out of reach."""
    monkeypatch.setattr("feedback.calls._FIRST_CONTACT_S", 0.0)
    monkeypatch.setattr("worker.process._START_S", 0.0)
    with ThreadPoolExecutor(1) as threads, ExitStack() as running:
        asked: list[Future[Result]] = []

        def begin() -> None:
            running.enter_context(serving(settings))
            client = running.enter_context(FeedbackClient.from_url(server.embedded.url))
            asked.append(threads.submit(client.put, SESSION, "m1", "positive"))

        server.restart(begin)
        assert [one.result().ok for one in asked] == [True]


@pytest.mark.parametrize("command", [("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"), ("SCRIPT", "FLUSH")])
def test_what_is_lost_again_and_again_is_had_again(
    command: tuple[str, ...], server: Server, settings: Settings
) -> None:
    """Connections and scripts; puts and lists go on between, and as many connections as before are all there are."""
    with serving(settings), FeedbackClient.from_url(server.embedded.url) as client:
        answer = client.put(SESSION, "m1", "positive")
        client.list(SESSION)
        connections = server.connections()
        for number in range(10):
            server.admin.execute_command(*command)
            current = items_of(client.list(SESSION, at_least=number + 1))[0]
            answer = client.put(SESSION, "m1", ("negative", "positive")[number % 2], if_version=current.version)
            assert answer.revision == number + 2
        # Some open their connections late; one left over each time would be ten.
        wait_until(
            lambda: server.admin.info("clients")["connected_clients"] < connections + 10, "no connection is left over"
        )
