"""A whole system as child processes of this one: server, worker and projector. For `feedback up` and the fixtures."""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from app.embedded import DURABLE, EmbeddedServer
from app.exits import ExitCode
from app.inspection import read_ownership, refuse_unfit_server
from app.processes import Child
from feedback.client import FeedbackClient
from feedback.connection import connect
from feedback.errors import FeedbackError, ProcessEnded, QueueUnavailable, SettingsInvalid, ShuttingDown
from feedback.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings
from gateway.address import listen

_READY_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 0.5
_POLL_S = 0.02
_STOP_MARGIN_S = 6.0
_METRICS_PORTS = {"worker": 0, "projector": 1, "gateway": 2}
"""Past `shutdown_grace`: a worker ends itself by force before that."""


class System:
    """One worker and one projector, and a server of their own unless the settings name one."""

    def __init__(
        self,
        home: Path,
        settings: Settings,
        *,
        server_options: Mapping[str, str] = DURABLE,
        inherit: Sequence[int] = (),
        gateway: bool = False,
    ) -> None:
        """`home` takes the server's files and the logs. A server is embedded when `settings.redis_url` is empty.

        `inherit` are file descriptors that stay open in every child. `gateway`: serve HTTP as well.
        """
        self.settings = settings
        self.logs = home / "logs"
        self._inherit = inherit
        self._gateway = gateway
        self._server = None
        if not settings.redis_url:
            self._server = EmbeddedServer(home / "valkey", server_options, inherit=inherit)
        self._serving: list[Child] = []

    @property
    def children(self) -> tuple[Child, ...]:
        """What runs, in the order in which it is stopped."""
        server = self._server.child if self._server else None
        return (*self._serving, server) if server else tuple(self._serving)

    @property
    def serving(self) -> tuple[str, ...]:
        """The names of its processes that serve, the server's aside."""
        return tuple(child.name for child in self._serving)

    def start(self, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start everything and wait until it serves. After a failure, `stop` still has to be called.

        Raises:
            QueueUnavailable: the server does not start or answer.
            SettingsInvalid: the server is unfit, or a process refuses its settings.
            ProcessEnded: a process ended instead of serving.
            ShuttingDown: `cancelled` said so meanwhile.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        if self._gateway:
            with listen(self.settings) as probe:  # a port that is taken is said before anything runs
                self.settings = msgspec.structs.replace(self.settings, gateway_port=probe.getsockname()[1])
        if self._server is not None:
            self._server.start(cancelled=cancelled)
            self.settings = msgspec.structs.replace(self.settings, redis_url=self._server.url)
        else:
            refuse_unfit_server(self.settings.redis_url)
        with connect(self.settings.redis_url) as redis, FeedbackClient.from_url(self.settings.redis_url) as client:
            strangers = _live_owners(redis)
            # The gateway goes first when all are stopped: what it has under way is still served.
            for name in (*(("gateway",) if self._gateway else ()), "worker", "projector"):
                child = Child(
                    name,
                    (sys.executable, "-P", "-m", "app.cli", name),
                    log=self.logs / f"{name}.log",
                    environ=child_environ(with_own_port(self.settings, name)),
                    inherit=self._inherit,
                )
                self._serving.append(child)
                child.start()
            self._wait_until_serving(redis, client, strangers, cancelled)

    def stop(self) -> list[str]:
        """Stop gateway, worker, projector and server, in this order. Names those that had to be killed. Repeatable."""
        grace_s = self.settings.shutdown_grace + _STOP_MARGIN_S
        return [child.name for child in self.children if not child.stop(grace_s)]

    def _wait_until_serving(
        self, redis: Redis, client: FeedbackClient, strangers: frozenset[str], cancelled: Callable[[], bool]
    ) -> None:
        give_up = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < give_up:
            if cancelled():
                raise ShuttingDown("stopped while starting")
            for child in self.children:
                if (code := child.poll()) is not None:
                    raise _premature_end(child, code)
            if _is_owned_by_newcomer(redis, strangers) and _projector_answers(client) and self._gateway_listens():
                return
            time.sleep(_POLL_S)
        raise QueueUnavailable(f"worker and projector run, but do not serve; see {self.logs}")

    def _gateway_listens(self) -> bool:
        if not self._gateway:
            return True
        address = (self.settings.gateway_host, self.settings.gateway_port)
        try:
            socket.create_connection(address, timeout=_ASK_TIMEOUT_S).close()
        except OSError:
            return False
        return True


def with_own_port(settings: Settings, name: str) -> Settings:
    """Each process serves its metrics on a port of its own: worker, projector, gateway on this and the next two."""
    first = settings.metrics_port
    return settings if not first else msgspec.structs.replace(settings, metrics_port=first + _METRICS_PORTS[name])


def _premature_end(child: Child, code: int) -> FeedbackError:
    """What a child's end means that came before it served."""
    tail = child.log_tail()
    if code == ExitCode.USAGE:
        return SettingsInvalid(f"the {child.name} refuses to start: {tail.rpartition(chr(10))[2]}")
    return ProcessEnded(f"the {child.name} ended with {code}; the end of {child.log}:\n{tail}")


def child_environ(settings: Settings) -> dict[str, str]:
    """This process's variables, with exactly these settings. Not as flags: a URL may hold a password."""
    inherited = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    ours = {ENV_PREFIX + name.upper(): str(value) for name, value in msgspec.structs.asdict(settings).items()}
    return inherited | ours


def _live_owners(redis: Redis) -> frozenset[str]:
    try:
        return frozenset(worker for worker in read_ownership(redis).owners.values() if worker)
    except RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


def _is_owned_by_newcomer(redis: Redis, strangers: frozenset[str]) -> bool:
    """Every partition has a live owner, and one of them came after `strangers` were counted."""
    try:
        ownership = read_ownership(redis)
    except RedisError:
        return False
    return ownership.is_complete and bool(set(ownership.owners.values()) - strangers)


def _projector_answers(client: FeedbackClient) -> bool:
    try:
        client.list(uuid4().hex, timeout=_ASK_TIMEOUT_S)
    except QueueUnavailable:
        return False
    return True
