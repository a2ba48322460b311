"""Logs that the workers cannot see: agents as real processes, killed and frozen at each of their steps."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from app.processes import Child
from feedback import FeedbackClient, Item, LiveSessions, Ok, Put, Rejected, SessionIdentity, Ticket, keys
from feedback.crashpoints import VARIABLE, Action, CrashPoint
from feedback.results import Result, TargetNotFound, VersionConflict
from feedback.settings import Settings
from feedback.troubles import read_troubles
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.acceptance.command_line import feedback
from tests.harness import CREATED_AT, settings_for, wait_until, write_session
from tests.outcomes import assert_sound
from tests.processes import child, is_stopped, kill

pytestmark = [pytest.mark.server, pytest.mark.process]

POINTS = (
    CrashPoint.AFTER_REGISTERING,
    CrashPoint.AFTER_QUESTION,
    CrashPoint.AFTER_READING,
    CrashPoint.AFTER_FLUSH_REQUEST,
    CrashPoint.BEFORE_TELLING,
)
NEIGHBOUR, LATE = "neighbour", "late"
LEASE_TTL_S = 1.0
LIVE = "live"
"""A Session of each host that its owner has to flush before it can be rated."""


class Machines:
    """One blind system, and hosts with logs of their own."""

    def __init__(self, url: str, home: Path, processes: ExitStack) -> None:
        self.settings = settings_for(
            url,
            home,
            logs="agents",
            sessions=str(home / "nowhere"),
            lease_ttl=LEASE_TTL_S,
            agent_timeout=0.6,
            flush_timeout=0.5,
            max_attempts=1000,
        )
        self._url = url
        self._home = home
        self._processes = processes
        self._commands: list[str] = []

    def settings_of(self, host: str) -> Settings:
        """An agent's."""
        root = self._home / "machines" / host
        root.mkdir(parents=True, exist_ok=True)
        return msgspec.structs.replace(self.settings, host=host, sessions=str(root), logs="local")

    def start(self, name: str, armed: str = "", *, host: str = "") -> Child:
        """A process of the blind system, or an agent of a host."""
        settings = self.settings_of(host) if host else self.settings
        logs = self._home / "logs" / (host or name)
        logs.mkdir(parents=True, exist_ok=True)
        process = child(name, settings, logs, {VARIABLE: armed} if armed else {})
        self._processes.callback(process.stop, 0)
        return process

    def furnish(self, host: str, live: LiveSessions) -> None:
        """Logs for a host: two that stand on disk, and one whose owner holds back what is to be rated."""
        settings = self.settings_of(host)
        for session_id in (f"{host}-a", f"{host}-b"):
            write_session(settings, session_id, "m1", "m2")
        session_id = f"{host}-{LIVE}"

        def flush() -> int:
            with LogWriter(Path(settings.sessions), session_id, created_at=CREATED_AT, cwd="/w") as log:
                if log.next_seq == 0:
                    log.append(exchange(1, "Please?", "Here.", user_id="u", assistant_id="m1"))
                return log.next_seq

        live.register(session_id, SessionIdentity(created_at=CREATED_AT, cwd="/w"), flush)

    def rate(self, host: str) -> list[Ticket]:
        """Puts on each of a host's Sessions: two that are taken, and one on a message that is not there."""
        with FeedbackClient.from_url(self._url, host=host) as client:
            wanted = [(f"{host}-a", "m1"), (f"{host}-{LIVE}", "m1"), (f"{host}-b", "nope")]
            tickets = client.submit_many([Put(*target, "positive") for target in wanted])
        self._commands += [ticket.command_id for ticket in tickets]
        return list(tickets)

    def results(self, tickets: Sequence[Ticket]) -> list[Result]:
        with FeedbackClient.from_url(self._url) as client:
            return [client.result_of(ticket.command_id, timeout=40) for ticket in tickets]

    def check_conflicts(self, tickets: Sequence[Ticket]) -> None:
        """What `rate` is told the second time: all was judged anew."""
        errors = [result.error for result in self.results(tickets) if isinstance(result, Rejected)]
        assert [type(error) for error in errors] == [VersionConflict, VersionConflict, TargetNotFound]

    def check_answers(self, tickets: Sequence[Ticket]) -> None:
        """What it is told the first time, whatever happened."""
        first, flushed, missing = self.results(tickets)
        for taken in (first, flushed):
            assert isinstance(taken, Ok)
            assert isinstance(taken.value, Item)
        assert isinstance(missing, Rejected)
        assert isinstance(missing.error, TargetNotFound)

    def check_store(self, redis: Redis) -> None:
        """Each command once, in store and streams."""
        assert_sound(redis, self.settings, self._commands)


@pytest.fixture
def machines(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as processes:
        yield Machines(valkey_url, tmp_path, processes)


@pytest.fixture
def live(valkey_url: str, redis_client: Redis) -> Iterator[LiveSessions]:
    with LiveSessions.from_url(valkey_url) as live:
        yield live


def serving(redis: Redis, host: str) -> str:
    """The id of the agent that serves a host; empty when there is none."""
    found = redis.hget(keys.agent(host), "agent")
    return found.decode() if isinstance(found, bytes) else ""


def test_agents_killed_at_each_step_lose_nothing_and_hold_up_their_own_sessions_only(
    machines: Machines, redis_client: Redis, live: LiveSessions
) -> None:
    """One host for each point; another whose agent is well; and one whose agent comes late."""
    agents = {str(point): machines.start("agent", f"{point}:kill", host=str(point)) for point in POINTS}
    machines.start("agent", host=NEIGHBOUR)
    machines.start("worker")
    for host in (*agents, NEIGHBOUR, LATE):
        machines.furnish(host, live)
    commands = {host: machines.rate(host) for host in (*agents, LATE)}
    for host, agent in agents.items():
        wait_until(lambda agent=agent: agent.poll() == -signal.SIGKILL, f"{host} is killed")  # type: ignore[misc]
    machines.check_answers(machines.rate(NEIGHBOUR))
    trouble = wait_until(lambda: list(read_troubles(redis_client).values()), "the worker says what it waits for")
    assert "AgentUnanswered" in {one.code for one in trouble}
    for host in commands:
        machines.start("agent", host=host)
    for tickets in commands.values():
        machines.check_answers(tickets)
    machines.check_store(redis_client)


def test_frozen_agents_are_replaced_and_thaw_as_standbys(
    machines: Machines, redis_client: Redis, live: LiveSessions
) -> None:
    """Their belated evidence is for requests that nobody waits for any more."""
    hosts = [str(point) for point in POINTS]
    frozen = {host: machines.start("agent", f"{host}:{Action.STOP}", host=host) for host in hosts}
    machines.start("worker")
    machines.start("projector")
    for host in hosts:
        machines.furnish(host, live)
    commands = {host: machines.rate(host) for host in hosts}
    for host, agent in frozen.items():
        wait_until(lambda agent=agent: is_stopped(agent), f"{host} is frozen")  # type: ignore[misc]
    successors = {host: machines.start("agent", host=host) for host in hosts}
    for tickets in commands.values():
        machines.check_answers(tickets)
    serving_now = {host: serving(redis_client, host) for host in hosts}
    for agent in frozen.values():
        kill(agent, signal.SIGCONT)
    for host, agent in frozen.items():
        machines.check_conflicts(machines.rate(host))
        assert agent.poll() is None, "it lives on"
    assert {host: serving(redis_client, host) for host in hosts} == serving_now
    for host, successor in successors.items():
        assert successor.stop(5), "it ends in order"
        wait_until(
            lambda host=host: serving(redis_client, host) not in {"", serving_now[host]},  # type: ignore[misc]
            "the standby serves",
        )
    machines.check_store(redis_client)


def test_a_worker_killed_while_it_waits_for_evidence_leaves_it_to_the_next(
    machines: Machines, redis_client: Redis, live: LiveSessions
) -> None:
    """The answer to its question is nobody's: the next one asks by itself (P4)."""
    machines.furnish(NEIGHBOUR, live)
    worker = machines.start("worker", f"{CrashPoint.AFTER_ASKING}:kill")
    tickets = machines.rate(NEIGHBOUR)
    wait_until(lambda: worker.poll() == -signal.SIGKILL, "it asked, and was killed")
    machines.start("agent", host=NEIGHBOUR)
    machines.start("worker")
    machines.check_answers(tickets)
    machines.check_store(redis_client)


def test_an_agent_without_a_name_is_told_what_to_set(valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    """Nothing that could be guessed: commands carry the very same name."""
    answer = feedback("agent", "--sessions", str(tmp_path), env={"FEEDBACK_REDIS_URL": valkey_url})
    assert (answer.code, answer.err.count("SettingsInvalid: host: not set; give --host or FEEDBACK_HOST")) == (2, 1)
