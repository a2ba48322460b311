"""Lists: read by who sees the log root, and asked through the projector; replay and rebuild."""

import asyncio
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from benchmarks.deployment import Deployment, deployed
from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.measure import Run, alternately, drain_rate, memory_mb, rate, wait_until
from benchmarks.puts import Load, submit
from benchmarks.reading import Reader, ask_at_once, list_concurrently
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback import FeedbackClient, Ok, Rejected, keys
from persistence.session_log import SessionLogs

_GET = "Redis GET of as many bytes"
_A_SECOND = "1/s"
_AT_ONCE = 1000
_THREADS = 4


def lists(run: Run) -> list[Figure]:
    """Lists of 10 items, one at a time and in a crowd, against a Redis GET of as many bytes."""
    sessions, messages = session_ids(run.size(500, 10)), message_ids(10)
    rounds, each = run.size(20, 2), run.size(50, 5)
    with run.home() as home, deployed(Path(home)) as system, ExitStack() as stack:
        _fill(system, sessions, messages)
        root = SessionLogs(Path(system.settings.sessions))
        seeing = stack.enter_context(FeedbackClient.from_url(system.settings.redis_url, logs=root))
        asked, read, missed = cycle(sessions), cycle(sessions), cycle(sessions)

        def get() -> None:
            assert system.redis.get("bench:body")

        def ask() -> None:
            assert isinstance(system.client.list(next(asked)), Ok)

        def ask_for_nothing() -> None:
            assert isinstance(system.client.list("no-such-session"), Rejected)

        def see() -> None:
            assert isinstance(seeing.list(next(read)), Ok)

        def miss() -> None:
            session = next(missed)
            system.redis.delete(keys.list_cache(session))
            assert isinstance(seeing.list(session), Ok)

        for _ in range(2 * len(sessions)):  # each log is read once, and each list cached by whoever is first
            see()
            ask()
        body = system.redis.hget(keys.list_cache(sessions[0]), "body")
        assert isinstance(body, bytes)
        system.redis.set("bench:body", body)
        plain, by_see = alternately((get, see), rounds=rounds, each=4 * each)
        got, by_ask, unknown, by_miss = alternately((get, ask, ask_for_nothing, miss), rounds=rounds, each=each)
        crowds = _crowds(run, system, see, sessions)
    return [
        figure(_GET, "µs", got),
        compared("list, asked through the projector", "µs", by_ask, _GET, got, target=Target("at most", 4)),
        compared("the same, no such Session", "µs", unknown, _GET, got),
        compared("list by who sees the log root", "µs", by_see, _GET, plain, target=Target("at most", 2)),
        compared("the same, nothing cached (and dropping what was)", "µs", by_miss, _GET, got),
        *crowds,
    ]


def _crowds(run: Run, system: Deployment, see: Callable[[], None], sessions: list[str]) -> list[Figure]:
    rounds, number = run.size(10, 2), run.size(5000, 100)
    many = [session for session, _ in zip(cycle(sessions), range(number), strict=False)]
    asked, awaited, read, threaded = [], [], [], []
    for _ in range(rounds):
        asked.append([rate(lambda: ask_at_once(system, many), number)])
        awaited.append([rate(lambda: asyncio.run(list_concurrently(system.settings.redis_url, many, 64)), number)])
        read.append([rate(lambda: _times(number, see), number)])
        threaded.append([rate(lambda: _by_threads(number, see), number)])
    return [
        figure("lists that the projector answers", _A_SECOND, asked, target=Target("at least", 5000, "value")),
        figure("lists of one asyncio host, 64 at a time", _A_SECOND, awaited),
        figure("lists by who sees the log root, one by one", _A_SECOND, read),
        figure(f"the same, by {_THREADS} threads", _A_SECOND, threaded, target=Target("at least", 8000, "value")),
    ]


def _times(number: int, action: Callable[[], None]) -> None:
    for _ in range(number):
        action()


def _by_threads(number: int, action: Callable[[], None]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        for done in [threads.submit(_times, number // _THREADS, action) for _ in range(_THREADS)]:
            done.result()


def listed(run: Run) -> list[Figure]:
    """The projector's memory when the lists of 40,000 Sessions have been asked for, which few have rated."""
    sessions = session_ids(run.size(40_000, 200))
    with run.home() as home, deployed(Path(home)) as system:
        write_sessions(Path(system.settings.sessions), sessions, 3, projects=10)
        submit(system.client, Load(sessions[::10], message_ids(1)).take(len(sessions) // 10))
        system.settle()
        before = memory_mb(system.projector_pid(), "VmRSS")
        for start in range(0, len(sessions), _AT_ONCE):
            ask_at_once(system, sessions[start : start + _AT_ONCE])
        after = memory_mb(system.projector_pid(), "VmRSS")
    return [
        figure("before", "MB", [[before]]),
        figure(f"{len(sessions):,} Sessions later", "MB", [[after]]),
    ]


def replay(run: Run) -> list[Figure]:
    """The projector against the worker on the same commands; then all cached lists made anew."""
    rounds, amount = run.size(5, 2), run.size(20_000, 400)
    sessions, messages = session_ids(run.size(1000, 20)), message_ids(run.size(101, 50))
    load = Load(sessions, messages)
    committed, projected = [], []
    with run.home() as home, deployed(Path(home)) as system, ExitStack() as stack:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        submit(system.client, load.take(len(sessions)))
        system.settle()
        for _ in range(rounds):
            system.signal_projector(signal.SIGSTOP)
            submit(system.client, load.take(amount))
            committed.append([drain_rate(system.backlog)])
            projected.append([_replay_rate(system)])
        reader = Reader(stack, system)
        items = amount * rounds + len(sessions)
        reader.read_all(sessions)
        rebuilt = [[_rebuild_rate(reader, sessions, items)] for _ in range(run.size(7, 2))]
    return [
        figure("commands that the worker makes durable", _A_SECOND, committed),
        compared(
            "their events, projected", _A_SECOND, projected, "the worker", committed, target=Target("at least", 3)
        ),
        figure("items in lists made anew", _A_SECOND, rebuilt, target=Target("at least", 50_000, "value")),
    ]


def _replay_rate(system: Deployment) -> float:
    """Events a second that the projector catches up with when it is let go."""
    missing, start = system.behind(), time.perf_counter()
    system.signal_projector(signal.SIGCONT)
    wait_until(lambda: system.behind() == 0, "everything is projected", poll_s=0.002)
    return missing / (time.perf_counter() - start)


def _rebuild_rate(reader: Reader, sessions: list[str], items: int) -> float:
    reader.cache.invalidate()
    return rate(lambda: reader.read_all(sessions), items)


def _fill(system: Deployment, sessions: list[str], messages: list[str]) -> None:
    write_sessions(Path(system.settings.sessions), sessions, len(messages))
    submit(system.client, Load(sessions, messages).take(len(sessions) * len(messages)))
    system.settle()
