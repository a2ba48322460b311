"""A system without a server and without processes: fakeredis, and worker and projector as threads of this process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fakeredis import FakeRedis, FakeServer
from redis import Redis

from app.testing import RunningSystem, settings_in_home
from feedback.client import FeedbackClient
from projections.process import run_projector
from worker.process import run_worker

_NOWHERE = "redis://fakeredis.invalid/0"


class _Client(FakeRedis):  # type: ignore[misc]  # fakeredis is not typed
    """Knows no rights, and so no scripts that go without some."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return super().execute_command(str(args[0]).removesuffix("_RO"), *args[1:], **options)


@contextmanager
def quick_system(home: Path) -> Iterator[RunningSystem]:
    """The same worker and projector code as in processes, until the block ends."""
    server, stop = FakeServer(server_type="valkey"), threading.Event()
    settings = settings_in_home(home, redis_url=_NOWHERE, partitions=2)

    def connect(url: str) -> Redis:
        del url
        client: Redis = _Client(server=server)
        return client

    with ThreadPoolExecutor(2, "feedback") as threads:
        running = [
            threads.submit(run_worker, settings, stop, connect=connect),
            threads.submit(run_projector, settings, stop, connect_to=connect),
        ]
        try:
            yield RunningSystem(settings, lambda: FeedbackClient(connect(settings.redis_url)))
        finally:
            stop.set()
    for process in running:
        process.result()
