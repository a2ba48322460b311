"""The projector process: one follower and one responder, on connections of their own."""

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event as StopEvent

from redis import Redis
from redis.exceptions import RedisError

from feedback.connection import connect
from feedback.errors import QueueUnavailable
from feedback.live_owners import live_owners
from feedback.model import SessionIdentity
from feedback.settings import Settings
from persistence.session_log import SessionLogs
from persistence.sidecar import open_store
from projections.agents import AgentIdentities
from projections.lease import FollowerLease
from projections.meter import Meter
from projections.queries import Responder
from projections.runner import Follower

_log = logging.getLogger(__name__)
_OFF = Meter()


class CurrentIdentities:
    """The identities of Sessions that have a log or a live owner (`feedback.identities.SessionIdentities`)."""

    def __init__(self, logs: SessionLogs, redis: Redis) -> None:
        self._logs = logs
        self._redis = redis

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        return self._logs.known_identity(session_id)

    def identity(self, session_id: str) -> SessionIdentity | None:
        return self._logs.identity(session_id) or self._of_owner(session_id)

    def _of_owner(self, session_id: str) -> SessionIdentity | None:
        """A Session that is live but was never written yet is one all the same (CONTRACT, "Rules of `put`", 3)."""
        try:
            owner = live_owners(self._redis, (session_id,)).get(session_id)
        except RedisError as error:
            raise QueueUnavailable(f"Redis: {error}") from error
        return None if owner is None else owner.identity


def run_projector(
    settings: Settings, stop: StopEvent, *, connect_to: Callable[[str], Redis] = connect, meter: Meter = _OFF
) -> None:
    """Follow events and answer queries until `stop` is set, then close everything.

    While another projector follows, this one answers queries only, and is ready to take over.

    `connect_to` makes a client for a URL; called several times. `meter` is told what is done. When one thread fails,
    `stop` is set, so that the other ends too, and the failure is raised.

    Raises:
        SettingsInvalid: Redis and the store belong to different deployments.
        StoreForeign, StoreUnavailable, QueueUnavailable: store or server cannot be opened.
        RedisError: the server refuses us for good (credentials, ACL).
    """
    with ExitStack() as closing_down:
        store = closing_down.enter_context(closing(open_store(settings.sidecar_url)))
        clients = [closing_down.enter_context(closing(connect_to(settings.redis_url))) for _ in range(5)]
        identities = None
        if settings.logs == "local":
            logs = SessionLogs(Path(settings.sessions), index_bytes=settings.index_bytes)
            identities = CurrentIdentities(logs, clients[2])
        agents = closing_down.enter_context(closing(AgentIdentities(clients[3], clients[4], settings.agent_timeout)))
        follower = Follower(clients[0], store, lease=FollowerLease(clients[0], settings.lease_ttl), meter=meter)
        responder = Responder(
            clients[1], store, identities, settings.io_threads, agents=agents, host=settings.host, meter=meter
        )
        closing_down.callback(responder.close)
        parts = closing_down.enter_context(ThreadPoolExecutor(2, "projector"))
        try:
            running = [parts.submit(part.run, stop) for part in (follower, responder)]
            _log.info("projector started")
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for part in running:
            part.result()
    _log.info("projector stopped")
