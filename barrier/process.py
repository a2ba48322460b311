"""An agent's process, from its start to its end."""

import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event as StopEvent

from redis import Redis
from redis.exceptions import RedisError

from barrier.agent import Agent, new_agent
from barrier.judging import Judge
from barrier.lease import AgentLease
from barrier.logs import LogBarrier
from barrier.meter import Meter
from feedback.connection import connect, is_passing, is_passing_reply
from feedback.errors import SettingsInvalid
from feedback.settings import Settings
from feedback.troubles import TroubleReport
from persistence.session_log import SessionLogs

logger = logging.getLogger(__name__)

_OFF = Meter()
_BLOCK_S = 0.5
_READING_S = 1.0
"""How long one look waits for logs that are slow to be read: Sessions whose logs are not must not wait longer."""
_FIRST_CONTACT_S = 5.0
"""How long a server that never answered is waited for: a wrong URL should be said early."""
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0


def run_agent(
    settings: Settings, stop: StopEvent, *, connect_to: Callable[[str], Redis] = connect, meter: Meter = _OFF
) -> None:
    """Answer for the logs under `settings.sessions` until `stop` is set, as the agent of `settings.host`.

    While another agent of that host serves, this one waits as its standby. `connect_to` makes a client for a URL;
    `meter` is told what is done.

    Raises:
        SettingsInvalid: no host is named, the log root is not there, or an agent of this host serves another root.
        RedisError: the server refuses us for good (credentials, access rights), or is out of reach at the start.
    """
    if not settings.host:
        raise SettingsInvalid("host: not set; give --host or FEEDBACK_HOST: the name that commands on these logs carry")
    root = Path(settings.sessions)
    if not root.is_dir():
        raise SettingsInvalid(f"sessions: {root} is no directory; give --sessions or FEEDBACK_SESSIONS")
    # A path may hold bytes that are no UTF-8, which no message can carry.
    me = new_agent(settings.host, os.fsencode(root.resolve()).decode(errors="backslashreplace"))
    with ExitStack() as closing_down:
        clients = [closing_down.enter_context(closing(connect_to(settings.redis_url))) for _ in range(2)]
        logs = SessionLogs(root, index_bytes=settings.index_bytes)
        barrier = closing_down.enter_context(LogBarrier(logs, settings.io_threads, patience_s=_READING_S))
        judge = Judge(meter.timed_barrier(barrier))
        agent = Agent(clients[0], settings.host, me, judge, flush_timeout_s=settings.flush_timeout, meter=meter)
        closing_down.callback(agent.close)
        lease = AgentLease(clients[1], settings.host, me, settings.lease_ttl)
        lease.start()
        closing_down.callback(lease.stop)
        logger.info("agent started host=%s root=%s agent=%s", settings.host, me.root, me.agent_id)
        report = TroubleReport(clients[0], f"agent {settings.host} {os.getpid()}")
        _serve(agent, lease, report, stop, meter)
    logger.info("agent stopped host=%s", settings.host)


def _serve(agent: Agent, lease: AgentLease, report: TroubleReport, stop: StopEvent, meter: Meter) -> None:
    """Step by step until `stop` is set; failures that pass are waited for."""
    pause_s = _FIRST_PAUSE_S
    proven = False
    give_up = time.monotonic() + _FIRST_CONTACT_S
    while not stop.is_set():
        if lease.failure is not None:
            raise lease.failure
        try:
            # One that serves no more still hears the owners that it asked.
            serves = lease.serves()
            meter.turn(serves=serves)
            if not serves:
                lease.wait(_BLOCK_S / 2)
            agent.step(_BLOCK_S if serves else 0.001, serves=serves)
        except RedisError as error:
            if not proven and not _passes(error, give_up):
                raise
            logger.warning("out of service for a moment: %s", error)
            report.meet(error)
            meter.interrupted()
            stop.wait(pause_s * random.uniform(0.5, 1))  # noqa: S311 - jitter, not a secret
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            with suppress(RedisError):
                agent.recover()
        else:
            proven, pause_s = True, _FIRST_PAUSE_S
            report.end()
        report.publish()
    with suppress(RedisError):
        agent.flush()
    report.withdraw()


def _passes(error: RedisError, give_up: float) -> bool:
    """Whether waiting may help a process that has not worked yet, as long as it is not time to give up."""
    # A server that is loading its data is at the right URL, and takes as long as it takes.
    if is_passing_reply(error) or str(error).startswith("WRONGTYPE"):
        return True
    return is_passing(error) and time.monotonic() < give_up
