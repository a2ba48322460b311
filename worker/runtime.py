"""What a worker process works with, put together from its settings."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from redis import Redis

from barrier.logs import LogBarrier
from feedback.calls import wall_clock_ms
from feedback.hosts import Sight
from feedback.settings import Settings
from feedback.uuids import random_uuid
from persistence.session_log import SessionLogs
from persistence.sidecar import open_store
from persistence.sidecar.store import SidecarStore
from worker import topology as topologies
from worker.engine import Engine
from worker.meter import Meter
from worker.remote import PlacedBarrier
from worker.topology import Standing

_OFF = Meter()


class Runtime(Struct, frozen=True):
    """The parts that a worker's loop and the RQ job function share."""

    settings: Settings
    redis: Redis
    store: SidecarStore
    standing: Standing
    engine: Engine
    clock_ms: Callable[[], int]
    meter: Meter


@contextlib.contextmanager
def open_runtime(
    settings: Settings, redis: Redis, *, clock_ms: Callable[[], int] = wall_clock_ms, meter: Meter = _OFF
) -> Iterator[Runtime]:
    """Open store and logs, agree on the topology; everything but `redis` is closed at the end.

    Raises:
        SettingsInvalid, StoreForeign, StoreUnavailable: something is missing, not ours, or out of reach.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_store(settings.sidecar_url)))
        sight = Sight(settings.logs == "local", settings.host)
        local = None
        if sight.logs:
            logs = SessionLogs(Path(settings.sessions), index_bytes=settings.index_bytes)
            local = stack.enter_context(LogBarrier(logs, settings.io_threads))
        engine = Engine(
            meter.timed_commits(store),
            meter.timed_barrier(PlacedBarrier(sight, local)),
            max_note_bytes=settings.max_note_bytes,
            retention_ms=1000 * settings.command_retention,
            clock_ms=clock_ms,
            new_version=random_uuid,
        )
        yield Runtime(settings, redis, store, topologies.establish(redis, store, settings), engine, clock_ms, meter)
