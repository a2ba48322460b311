"""Whoever changes the number of partitions, or carries the change through, dies or stands still in the midst of it."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from app.processes import Child
from feedback import FeedbackClient, Put, Ticket, keys
from feedback.crashpoints import VARIABLE, Action, CrashPoint
from feedback.partitions import PartitionId
from feedback.settings import Settings
from tests.acceptance.command_line import Answer, feedback
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import set_up
from tests.outcomes import assert_sound
from tests.processes import child, is_stopped, kill

pytestmark = [pytest.mark.server, pytest.mark.process]

SESSIONS = ("a", "b", "c", "d")
MESSAGES = ("m1", "m2", "m3")
BEFORE, AFTER = 2, 3
GENERATIONS = {1: BEFORE, 2: AFTER}


class Resized:
    """A system whose number of partitions is changed; its processes are started by the test."""

    def __init__(self, settings: Settings, client: FeedbackClient, processes: ExitStack, home: Path) -> None:
        self.settings = settings
        self.tickets: list[Ticket] = []
        self._client = client
        self._processes = processes
        self._home = home

    def submit(self, message_id: str) -> list[Ticket]:
        """A put of this message, and a conflict with it, in each Session."""
        puts = [Put(session_id, message_id, "positive") for session_id in SESSIONS]
        tickets = list(self._client.submit_many([*puts, *puts_again(puts)]))
        self.tickets += tickets
        return tickets

    def change(self, crash_point: str = "") -> Answer:
        """`feedback partitions set`."""
        urls = {"FEEDBACK_REDIS_URL": self.settings.redis_url, "FEEDBACK_SIDECAR_URL": self.settings.sidecar_url}
        return feedback("partitions", "set", str(AFTER), env=urls | {VARIABLE: crash_point})

    def start_worker(self, crash_point: str) -> Child:
        worker = child("worker", self.settings, self._home, {VARIABLE: crash_point})
        self._processes.callback(worker.stop, 0)
        return worker

    def finish(self, redis: Redis) -> None:
        """All are answered, once, each Session's in order over both generations; nothing is left anywhere."""
        for ticket in self.tickets:
            assert ticket.result(30).revision is not None
        partitions = [PartitionId(one, number) for one, count in GENERATIONS.items() for number in range(count)]
        lists = [*map(keys.queue, partitions), *map(keys.claimed, partitions)]
        wait_until(lambda: not redis.exists(*lists), "all is finished")
        events = assert_sound(redis, self.settings, [ticket.command_id for ticket in self.tickets], GENERATIONS)
        sent = {ticket.command_id: place for place, ticket in enumerate(self.tickets)}
        for session_id in SESSIONS:
            places = [sent[event.command_id] for event in events if event.session_id == session_id]
            assert places == sorted(places), session_id


def puts_again(puts: list[Put]) -> list[Put]:
    return [Put(put.session_id, put.message_id, "negative") for put in puts]


@pytest.fixture
def system(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Resized]:
    set_up(redis_client, settings_for(valkey_url, tmp_path, partitions=BEFORE))
    settings = settings_for(valkey_url, tmp_path, partitions=0, lease_ttl=1.0, event_retention=1_000_000)
    for session_id in SESSIONS:
        write_session(settings, session_id, *MESSAGES)
    with FeedbackClient.from_url(valkey_url) as client, ExitStack() as processes:
        yield Resized(settings, client, processes, tmp_path)


def wait_for(worker: Child, action: Action) -> None:
    """Until it is dead, or stands still."""
    if action is Action.KILL:
        wait_until(lambda: worker.poll() == -signal.SIGKILL, "the worker is killed")
    else:
        wait_until(lambda: is_stopped(worker), "the worker is frozen")


def test_a_change_that_was_killed_half_way_is_finished_by_asking_again(system: Resized, redis_client: Redis) -> None:
    """Until then all goes on as it was: the store knows of the next generation, and has the former one worked off."""
    assert system.change(f"{CrashPoint.AFTER_SUCCESSION}:{Action.KILL}").code == -signal.SIGKILL
    with serving(system.settings, projector=False):
        for ticket in system.submit("m1"):
            ticket.result()
        assert redis_client.hget(keys.TOPOLOGY, "generation") is not None
        assert system.change().code == 0
        system.submit("m2")
        system.finish(redis_client)


@pytest.mark.parametrize(
    ("point", "action"),
    [
        (CrashPoint.BEFORE_RETIRING, Action.KILL),
        (CrashPoint.AFTER_RETIRING, Action.KILL),
        (CrashPoint.AFTER_RETIRING, Action.STOP),
        pytest.param(CrashPoint.BEFORE_RETIRING, Action.STOP, marks=pytest.mark.chaos),
    ],
)
def test_the_worker_that_retires_a_generation_is_disturbed(
    system: Resized, redis_client: Redis, point: CrashPoint, action: Action
) -> None:
    """Another one carries the change through, and what thaws then serves the next generation with it."""
    system.submit("m1")
    assert system.change().code == 0
    system.submit("m2")
    worker = system.start_worker(f"{point}:{action}")
    wait_for(worker, action)
    system.submit("m3")
    with serving(system.settings, projector=False):
        for ticket in system.tickets:
            ticket.result()
        if action is Action.STOP:
            kill(worker, signal.SIGCONT)
            wait_until(lambda: len(set(redis_client.hvals(keys.owners(2)))) == 2, "it has its share of the next one")
        system.finish(redis_client)


@pytest.mark.parametrize(
    ("point", "action"),
    [
        (CrashPoint.BEFORE_MOVE, Action.KILL),
        (CrashPoint.AFTER_MOVE, Action.KILL),
        (CrashPoint.AFTER_MOVE, Action.STOP),
        pytest.param(CrashPoint.BEFORE_MOVE, Action.STOP, marks=pytest.mark.chaos),
    ],
)
def test_the_worker_that_moves_jobs_of_a_retired_generation_is_disturbed(
    system: Resized, redis_client: Redis, point: CrashPoint, action: Action
) -> None:
    """Another one moves what is left: each is done once, in order, whoever moves it."""
    tickets = system.submit("m1") + system.submit("m2")
    waiting = {number: redis_client.lrange(keys.queue(PartitionId(1, number)), 0, -1) for number in range(BEFORE)}
    redis_client.delete(*(keys.queue(PartitionId(1, number)) for number in range(BEFORE)))
    assert len(tickets) == sum(map(len, waiting.values()))
    assert system.change().code == 0
    with serving(system.settings, projector=False):
        wait_until(lambda: redis_client.hlen(keys.owners(2)) == AFTER, "the former generation is retired")
    for number, ids in waiting.items():
        redis_client.rpush(keys.queue(PartitionId(1, number)), *ids)
    worker = system.start_worker(f"{point}:{action}")
    wait_for(worker, action)
    with serving(system.settings, projector=False):
        for ticket in tickets:
            ticket.result()
        if action is Action.STOP:
            kill(worker, signal.SIGCONT)
        system.submit("m3")
        system.finish(redis_client)
