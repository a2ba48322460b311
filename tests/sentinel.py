"""A primary, its replica and three Sentinels that watch them, all real processes with passwords."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from app.embedded import VOLATILE, EmbeddedServer, server_binary
from app.processes import Child
from feedback.connection import connect
from tests.harness import wait_until
from tests.ports import free_ports
from tests.processes import kill

SERVICE = "feedback"
PASSWORD = "server/secret"
SENTINEL_PASSWORD = "sentinel-secret"
_OPTIONS = {**VOLATILE, "repl-diskless-sync-delay": "0", "repl-timeout": "5"}


class Watched:
    """The two servers and the URL that finds whichever is primary."""

    def __init__(self, servers: Sequence[EmbeddedServer], sentinels: Sequence[int]) -> None:
        self.primary, self.replica = servers
        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        encoded = PASSWORD.replace("/", "%2F")
        self.url = f"redis+sentinel://:{encoded}@{hosts}/{SERVICE}/0?sentinel_password={SENTINEL_PASSWORD}"
        self._sentinels = sentinels

    @contextmanager
    def direct(self, server: EmbeddedServer) -> Iterator[Redis]:
        """A client of one server, whatever its role is."""
        with connect(server.url.replace("redis://", f"redis://:{PASSWORD.replace('/', '%2F')}@")) as redis:
            yield redis

    def fall_behind(self) -> None:
        """From now on the replica gets nothing; the primary goes on."""
        self._signal(self.replica, signal.SIGSTOP)
        with self.direct(self.primary) as redis:
            # What was in the connection's buffers would reach it yet.
            redis.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """The primary dies, and the replica as it is takes its place."""
        self._signal(self.primary, signal.SIGKILL)
        self._signal(self.replica, signal.SIGCONT)
        with self.direct(self.replica) as redis:
            # A server that is promoted ends the connections that it has.
            wait_until(lambda: role_if_told(redis) == "master", "the replica is promoted", 60)

    def is_ready(self) -> bool:
        """Whether the Sentinels know each other and the replica, which has what the primary has."""
        with self.direct(self.replica) as redis:
            if redis.info("replication").get("master_link_status") != "up":
                return False
        for port in self._sentinels:
            with connect(f"redis://:{SENTINEL_PASSWORD}@127.0.0.1:{port}") as sentinel:
                try:
                    state = sentinel.sentinel_masters()[SERVICE]
                except RedisError:
                    return False
                if (state["num-slaves"], state["num-other-sentinels"]) != (1, len(self._sentinels) - 1):
                    return False
        return True

    @staticmethod
    def _signal(server: EmbeddedServer, number: signal.Signals) -> None:
        assert server.child is not None
        kill(server.child, number)


def role(redis: Redis) -> str:
    """`master` or `slave`, as the server spells it."""
    return str(redis.info("replication")["role"])


def role_if_told(redis: Redis) -> str | None:
    """As `role`, or None while the server does not answer."""
    try:
        return role(redis)
    except RedisError:
        return None


@contextmanager
def watched_servers(directory: Path) -> Iterator[Watched]:
    """Both servers and all Sentinels, ready to fail over."""
    with ExitStack() as running:
        servers = [_server(running, directory / name) for name in ("primary", "replica")]
        ports = free_ports(3)
        watched = Watched(servers, ports)
        host, port = _address(servers[0])
        with watched.direct(servers[1]) as redis:
            redis.execute_command("REPLICAOF", host, port)
        for sentinel_port in ports:
            _sentinel(running, directory / str(sentinel_port), sentinel_port, (host, port))
        wait_until(watched.is_ready, "the Sentinels know everybody", 60)
        yield watched


def _server(running: ExitStack, directory: Path) -> EmbeddedServer:
    server = EmbeddedServer(directory, _OPTIONS)
    server.start()
    running.callback(server.stop)
    with connect(server.url) as redis:
        redis.config_set("masterauth", PASSWORD)
        redis.config_set("requirepass", PASSWORD)
    return server


def _sentinel(running: ExitStack, directory: Path, port: int, primary: tuple[str, str]) -> None:
    directory.mkdir()
    settings = directory / "sentinel.conf"
    settings.write_text(
        f"""
bind 127.0.0.1
port {port}
dir {directory}
requirepass {SENTINEL_PASSWORD}
sentinel sentinel-pass {SENTINEL_PASSWORD}
sentinel monitor {SERVICE} {" ".join(primary)} 2
sentinel auth-pass {SERVICE} {PASSWORD}
sentinel down-after-milliseconds {SERVICE} 500
sentinel failover-timeout {SERVICE} 3000
"""
    )
    child = Child("sentinel", [str(server_binary()), str(settings), "--sentinel"], log=directory / "log")
    child.start()
    running.callback(child.stop, 5)


def _address(server: EmbeddedServer) -> tuple[str, str]:
    host, port = server.url.removeprefix("redis://").removesuffix("/0").split(":")
    return host, port
