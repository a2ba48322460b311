"""Logs that the worker cannot see: the same puts through the agent of a host, and on logs that are at hand."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from app.processes import Child
from app.system import child_environ
from benchmarks.deployment import Deployment, deployed
from benchmarks.figures import Figure, compared, figure, tail
from benchmarks.measure import Run, drain_rate, in_blocks, wait_until
from benchmarks.puts import Load, Rater, submit
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback import FeedbackClient, keys

_HOST = "elsewhere"
_UNIT, _A_SECOND = "µs", "1/s"


def agents(run: Run) -> list[Figure]:
    """A lone put and a backlog of puts through an agent, against a log at hand; one worker does both."""
    sessions, messages = session_ids(run.size(500, 10)), message_ids(run.size(160, 60))
    near, far = sessions[: len(sessions) // 2], sessions[len(sessions) // 2 :]
    rounds, each = run.size(20, 2), run.size(50, 5)
    amount = run.size(5000, 100)
    with run.home() as home, deployed(Path(home), projector=False) as system, _agent(system) as client:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        raters = [Rater(system.client, [(near[0], one) for one in messages])]
        raters.append(Rater(client, [(far[0], one) for one in messages]))
        for rater in raters:
            for _ in messages:
                rater()
        lone_near, lone_far = in_blocks(raters, rounds=rounds, each=each)
        loads = Load(near[1:], messages), Load(far[1:], messages)
        rates: tuple[list[list[float]], list[list[float]]] = ([], [])
        for _ in range(run.size(5, 1)):
            for rate, load, of_client in zip(rates, loads, (system.client, client), strict=True):
                goal = system.committed() + amount
                submit(of_client, load.take(amount))
                rate.append([drain_rate(lambda goal=goal: goal - system.committed())])  # type: ignore[misc]
    return [
        figure("lone put, log at hand", _UNIT, lone_near),
        compared("lone put, by an agent", _UNIT, lone_far, "log at hand", lone_near),
        tail("the same, 99th percentile", _UNIT, lone_far),
        figure("backlog, logs at hand", _A_SECOND, rates[0]),
        compared("backlog, by an agent", _A_SECOND, rates[1], "logs at hand", rates[0]),
    ]


@contextmanager
def _agent(system: Deployment) -> Iterator[FeedbackClient]:
    """An agent process for the very same logs, and a client that names its host."""
    settings = msgspec.structs.replace(system.settings, host=_HOST)
    command = (sys.executable, "-P", "-m", "app.cli", "agent")
    log = Path(settings.sessions).with_name("agent.log")
    child = Child("agent", command, log=log, environ=child_environ(settings))
    child.start()
    try:
        wait_until(lambda: system.redis.exists(keys.agent(_HOST)), "the agent serves")
        with FeedbackClient.from_url(settings.redis_url, host=_HOST) as client:
            yield client
    finally:
        child.stop(0)
