"""Whose worker `feedback up` kills for its silence, and whose not."""

import itertools
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from app.processes import Child
from app.pulse import PATIENCE_TTLS, Pulse
from feedback import keys
from tests.harness import wait_until
from tests.proxy import Proxy

pytestmark = [pytest.mark.server, pytest.mark.process]

FAR_MORE = 10 * PATIENCE_TTLS
"""Lease TTLs, of a second each."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Child]:
    """A process that does nothing: tests give it a heartbeat."""
    child = Child("worker", (sys.executable, "-c", "import signal; signal.pause()"), log=tmp_path / "log")
    child.start()
    try:
        yield child
    finally:
        child.stop(10)


class Beats:
    """The worker's entry on the server, as it would write it itself."""

    def __init__(self, redis: Redis, worker: Child) -> None:
        self._redis = redis
        self._worker_id = f"{socket.gethostname()}-{worker.pid}-abcdef"
        self._beats = itertools.count()

    def beat(self) -> None:
        self._redis.sadd(keys.WORKERS, "another-1-abcdef", self._worker_id)
        self._redis.set(keys.worker_session(self._worker_id), next(self._beats))

    def expire(self) -> None:
        self._redis.delete(keys.worker_session(self._worker_id))
        self._redis.srem(keys.WORKERS, self._worker_id)


def look_on(pulse: Pulse, ttls: int) -> None:
    """Look for so many lease TTLs of a second, twice in each."""
    for step in range(2 * ttls):
        pulse.look(pulse.next_look + step / 10)


@pytest.mark.parametrize("expires", [False, True])
def test_a_worker_whose_heart_has_stopped_is_killed(
    redis_client: Redis, worker: Child, valkey_url: str, expires: bool
) -> None:
    """Whether its last beat still stands there or not, after the patience and not before."""
    beats = Beats(redis_client, worker)
    with closing(Pulse(worker, valkey_url, 1.0)) as pulse:
        beats.beat()
        look_on(pulse, 1)
        if expires:
            beats.expire()
        look_on(pulse, PATIENCE_TTLS)
        assert worker.poll() is None
        look_on(pulse, 1)
        assert wait_until(worker.poll, "it ends") == -signal.SIGKILL


def test_a_worker_that_lives_or_whose_heart_cannot_be_heard_is_left_alone(
    redis_client: Redis, worker: Child, valkey_url: str
) -> None:
    """One that beats, one that is not registered yet, one that nobody can ask about, one that was just started."""
    beats = Beats(redis_client, worker)
    with Proxy(valkey_url) as proxy, closing(Pulse(worker, proxy.url, 1.0)) as pulse:
        look_on(pulse, FAR_MORE)
        for _ in range(FAR_MORE):
            beats.beat()
            look_on(pulse, 1)
        look_on(pulse, PATIENCE_TTLS - 1)
        worker.stop(10)
        worker.start()
        Beats(redis_client, worker).beat()
        look_on(pulse, PATIENCE_TTLS - 1)
        proxy.close()
        look_on(pulse, FAR_MORE)
        assert worker.poll() is None
