"""A worker process from its start to its end."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from uuid import uuid4

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from feedback import connection, keys
from feedback.calls import wall_clock_ms
from feedback.crashpoints import CrashPoint, reach
from feedback.errors import QueueUnavailable, StoreUnavailable
from feedback.settings import Settings
from worker import topology as topologies
from worker.loop import PartitionLoop
from worker.meter import Meter
from worker.rq_worker import FeedbackWorker
from worker.runtime import Runtime, open_runtime

logger = logging.getLogger(__name__)

T = TypeVar("T")

_START_S = 5.0
_OFF = Meter()


def run_worker(
    settings: Settings,
    stop: threading.Event,
    *,
    connect: Callable[[str], Redis] = connection.connect,
    clock_ms: Callable[[], int] = wall_clock_ms,
    meter: Meter = _OFF,
) -> None:
    """Serve a share of the partitions until `stop` is set, then drain. `meter` is told what is done.

    Raises:
        SettingsInvalid, StoreForeign, StoreUnavailable, QueueUnavailable: an operator has to look.
    """
    worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
    redis = connect(settings.redis_url)
    try:
        with contextlib.ExitStack() as opened:
            runtime = _patiently(
                lambda: opened.enter_context(open_runtime(settings, redis, clock_ms=clock_ms, meter=meter)), stop
            )
            if runtime is None:
                return
            logger.info("worker started worker=%s partitions=%d", worker_id, runtime.standing.current.partitions)
            with _bell(redis, worker_id, stop):
                _serve_generations(runtime, worker_id, stop)
            logger.info("worker stopped worker=%s", worker_id)
    except RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error
    finally:
        redis.close()


@contextlib.contextmanager
def _bell(redis: Redis, worker_id: str, stop: threading.Event) -> Iterator[None]:
    """Wake the worker's loop when `stop` is set: it may be blocked, waiting for work. Sets `stop` at its own end."""

    def ring() -> None:
        stop.wait()
        # Without a server there is nothing to wake: the loop's blocking read has ended by itself.
        with contextlib.suppress(RedisError):
            redis.rpush(keys.wake(worker_id), "look")
            redis.expire(keys.wake(worker_id), keys.WAKE_TTL_S)

    bell = threading.Thread(target=ring, name="stop-bell", daemon=True)
    bell.start()
    try:
        yield
    finally:
        stop.set()
        bell.join()


def _serve_generations(runtime: Runtime, worker_id: str, stop: threading.Event) -> None:
    """Serve the generation that may have owners now, then the next; a loop ends when its generation does."""
    proven = False
    while not stop.is_set():
        runtime.meter.turn()
        try:
            standing = topologies.current_standing(runtime.store, runtime.settings)
            served = msgspec.structs.replace(runtime, standing=standing)
            FeedbackWorker(PartitionLoop(served, worker_id), served, worker_id).serve(stop)
            proven = True
            if standing.former is not None and not stop.is_set():
                reach(CrashPoint.BEFORE_RETIRING)
                runtime.store.retire(standing.stored)
                reach(CrashPoint.AFTER_RETIRING)
                logger.info("generation retired generation=%d", standing.former.generation)
        except (RedisError, StoreUnavailable) as error:
            # Before the loop, which waits by itself: RQ asks the server who it is. What refuses one that has served
            # before is a rule changed by mistake, say, which an operator can end.
            if isinstance(error, RedisError) and not proven and not connection.is_passing(error):
                raise
            logger.warning("not serving yet: %s", error)
            stop.wait(0.5)


def _patiently(begin: Callable[[], T], stop: threading.Event) -> T | None:
    """A server that starts together with its workers may be a little late; a wrong URL should be said early.

    None when `stop` was set while it was waited for.
    """
    give_up = time.monotonic() + _START_S
    while True:
        try:
            return begin()
        except RedisError as error:
            if not connection.is_passing(error):
                raise
            # One that is loading its data is at the right URL, and takes as long as it takes.
            if time.monotonic() > give_up and not connection.is_passing_reply(error):
                raise
            if stop.wait(0.1):
                return None
