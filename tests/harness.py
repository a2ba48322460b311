"""What integration tests share: a worker and a projector of the real code, as threads of the test's process."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from redis.exceptions import RedisError

from barrier.process import run_agent
from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.connection import connect
from feedback.errors import FeedbackError
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from projections.process import run_projector
from worker.process import run_worker

T = TypeVar("T")

CREATED_AT = 1_790_000_000_000


def settings_for(url: str, home: Path, **more: object) -> Settings:
    """Settings of a system whose files lie in `home`; few partitions, so that tests see them contended."""
    usual = {
        "redis_url": url,
        "sidecar_url": f"sqlite:///{home / 'sidecar.sqlite3'}",
        "sessions": str(home / "sessions"),
        "max_note_bytes": 8192,
        "partitions": 4,
        "lease_ttl": 2.0,
    }
    (home / "sessions").mkdir(parents=True, exist_ok=True)
    return msgspec.convert(usual | more, Settings)


HOST = "box-1"


class Placed(NamedTuple):
    """One system: its worker and projector, and where its clients' Session logs are."""

    settings: Settings
    agents: tuple[Settings, ...] = ()
    host: str | None = None


def here(settings: Settings) -> Placed:
    """Worker and projector see the log root."""
    return Placed(settings)


def elsewhere(settings: Settings) -> Placed:
    """They do not, and ask the agent of `HOST`, which does."""
    blind = msgspec.structs.replace(settings, logs="agents", sessions="/nowhere", host="")
    return Placed(blind, (msgspec.structs.replace(settings, host=HOST),), HOST)


@contextmanager
def serving(
    settings: Settings,
    *,
    workers: int = 1,
    projector: bool = True,
    clock_ms: Callable[[], int] = wall_clock_ms,
    agents: Sequence[Settings] = (),
) -> Iterator[threading.Event]:
    """Workers, a projector and agents, until the block ends; what one of them raised is raised at its end."""
    stop = threading.Event()
    with ThreadPoolExecutor(workers + 1 + len(agents)) as threads:
        running = [threads.submit(run_worker, settings, stop, clock_ms=clock_ms) for _ in range(workers)]
        running += [threads.submit(run_agent, of_host, stop) for of_host in agents]
        if projector:
            running.append(threads.submit(run_projector, settings, stop))
        try:
            _wait_for_agents(settings.redis_url, agents, running)
            yield stop
        finally:
            stop.set()
            _hurry(settings.redis_url, running)
    for process in running:
        process.result()


def _wait_for_agents(url: str, agents: Sequence[Settings], running: Sequence[Future[None]]) -> None:
    """Until all can be asked, or something has ended: who asks an agent that is not there yet is told so at once."""
    if agents:
        with closing(connect(url)) as redis:
            names = [keys.agent(of_host.host) for of_host in agents]
            wait_until(
                lambda: redis.exists(*names) == len(names) or any(one.done() for one in running), "the agents serve"
            )


_BLOCKING = ("blmpop", "blpop", "xread")
"""What projectors and agents wait with, for half a second at a time; the worker rings its own bell."""


def _hurry(url: str, running: Sequence[Future[None]]) -> None:
    """End the blocking reads, as if their time were over, so that who is to stop sees it now.

    Where that cannot be done (no server, no right to), they end by themselves.
    """
    with suppress(RedisError, FeedbackError), closing(connect(url, timeout_s=0.5)) as redis:
        while wait(running, timeout=0.01).not_done:
            for client in redis.client_list():
                if client["cmd"] in _BLOCKING:
                    redis.client_unblock(int(client["id"]))


def write_session(settings: Settings, session_id: str, *message_ids: str, cwd: str | None = "/w") -> None:
    """A Session log with one eligible assistant message per id."""
    with LogWriter(Path(settings.sessions), session_id, created_at=CREATED_AT, cwd=cwd) as log:
        for turn, message_id in enumerate(message_ids, start=1):
            log.append(exchange(turn, "Please?", "Here.", user_id=f"u{turn}", assistant_id=message_id))


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
    """Poll until the condition holds; its (true) value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.005)
    return value
