"""Backlogs: how fast worker processes make commands durable, against stock RQ's no-op rate."""

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.baselines import StockRq
from benchmarks.deployment import Deployment, deployed
from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.measure import Run, alternately, drain_rate, wait_until
from benchmarks.puts import Load, submit
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback import Put

_A_SECOND = "1/s"
_RQ = "stock RQ, no-op jobs"
_RQ_JOBS = (300, 20)


def saturated(run: Run) -> list[Figure]:
    """A backlog of puts over 1,000 Sessions, one worker: commands a second until all are answered."""
    rounds, amount = run.size(7, 2), run.size(10_000, 400)
    sessions, messages = session_ids(run.size(1000, 20)), message_ids(run.size(160, 100))
    load = Load(sessions, messages)
    fresh: list[list[float]] = []
    refused: list[list[float]] = []
    stock: list[list[float]] = []
    with run.home() as home, deployed(Path(home)) as system:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        _drained(system, load.take(len(sessions)))
        rq = StockRq(system.redis, Path(home))
        rq.start()
        try:
            for _ in range(rounds):
                stock.append([_rq_rate(rq, run.size(*_RQ_JOBS))])
                fresh.append([_drained(system, load.take(amount))])
                refused.append([_drained(system, load.take(amount, "stale"))])
        finally:
            rq.stop()
    return [
        figure(_RQ, _A_SECOND, stock),
        compared("durable puts", _A_SECOND, fresh, _RQ, stock, target=Target("at least", 50)),
        compared("puts that meet a conflict", _A_SECOND, refused, _RQ, stock),
    ]


def workers(run: Run) -> list[Figure]:
    """The same backlog with 1, 2 and 4 worker processes, on as many cores as there are."""
    rounds, amount = run.size(5, 1), run.size(10_000, 400)
    sessions, messages = session_ids(run.size(1000, 20)), message_ids(run.size(200, 100))
    load = Load(sessions, messages)
    numbers = (1, 2) if run.quick else (1, 2, 4)
    rates: dict[int, list[list[float]]] = {number: [] for number in numbers}
    with run.home() as home, deployed(Path(home), workers=0) as system:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        for _ in range(rounds):
            for number in numbers:
                system.start_workers(number)
                _drained(system, load.take(len(sessions)))
                rates[number].append([_drained(system, load.take(amount))])
                system.stop_workers()
    first, *others = numbers
    alone = f"{first} worker"
    return [
        figure(alone, _A_SECOND, rates[first]),
        *(compared(f"{number} workers", _A_SECOND, rates[number], alone, rates[first]) for number in others),
    ]


def hot_session(run: Run) -> list[Figure]:
    """A backlog in one Session, which is one partition's, against one spread over many."""
    rounds, amount = run.size(5, 2), run.size(2000, 100)
    many, messages = session_ids(run.size(1000, 20)), message_ids((rounds + 1) * amount)
    hot, spread = Load(["hot"], messages), Load(many, messages[: amount * (rounds + 1) // len(many) + 2])
    taken: list[list[float]] = []
    base: list[list[float]] = []
    lags: list[list[float]] = []
    with run.home() as home, deployed(Path(home)) as system:
        root = Path(system.settings.sessions)
        write_sessions(root, ["hot"], len(messages))
        write_sessions(root, many, len(messages) // len(many) + 2)
        _drained(system, [*spread.take(len(many)), *hot.take(1)])
        for _ in range(rounds):
            base.append([_drained(system, spread.take(amount))])
            submit(system.client, hot.take(amount))
            taken.append([drain_rate(system.backlog)])
            lags.append([1000 * _seconds_until_projected(system)])
            system.settle()
    return [
        figure("over many Sessions", _A_SECOND, base),
        compared("in one Session", _A_SECOND, taken, "over many Sessions", base),
        figure("until the last is in the cached list", "ms", lags),
    ]


def enqueueing(run: Run) -> list[Figure]:
    """What a host pays to hand over a command, against RQ's own `Queue.enqueue`."""
    rounds, each, many = run.size(20, 3), run.size(20, 2), 256
    sessions, messages = session_ids(run.size(200, 20)), message_ids(run.size(600, 100))
    load = Load(sessions, messages)
    with run.home() as home, deployed(Path(home), workers=0, projector=False) as system:
        rq = StockRq(system.redis, Path(home))
        actions = (rq.enqueue, lambda: system.client.submit(load.take(1)[0]))
        theirs, ours = alternately(actions, rounds=rounds, each=each)
        bulk = (lambda: rq.enqueue_many(many), lambda: system.client.submit_many(load.take(many)))
        their_bulk, our_bulk = (
            [[taken / many for taken in one] for one in of_action]
            for of_action in alternately(bulk, rounds=rounds, each=1)
        )
        system.redis.flushall()
    name = "RQ's Queue.enqueue, per job"
    return [
        figure(name, "µs", theirs),
        compared(f"RQ's enqueue_many of {many}, per job", "µs", their_bulk, name, theirs),
        compared("submit, per command", "µs", ours, name, theirs),
        compared(f"submit_many of {many}, per command", "µs", our_bulk, name, theirs, target=Target("at most", 1 / 8)),
    ]


def _rq_rate(rq: StockRq, jobs: int) -> float:
    rq.enqueue_many(jobs)
    return drain_rate(rq.backlog)


def _drained(system: Deployment, puts: Sequence[Put]) -> float:
    """Commands a second out of a backlog of these puts; the system is at rest before and afterwards."""
    submit(system.client, puts)
    answered = drain_rate(system.backlog)
    system.settle()
    return answered


def _seconds_until_projected(system: Deployment) -> float:
    start = time.perf_counter()
    wait_until(lambda: system.behind() == 0, "everything is projected")
    return time.perf_counter() - start
