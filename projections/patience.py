"""Running on through failures that pass."""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event

from redis import Redis
from redis.exceptions import RedisError

from feedback.connection import is_passing
from feedback.errors import StoreForeign, StoreUnavailable
from feedback.troubles import TroubleReport
from projections.cache import is_wrong_type
from projections.meter import Meter

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.05
_LAST_DELAY_S = 1.0
_OFF = Meter()


def run_patiently(
    name: str, redis: Redis, stop: Event, step: Callable[[], None], recover: Callable[[], None], *, meter: Meter = _OFF
) -> None:
    """Repeat `step` until `stop` is set; after a failure wait (longer each time), `recover`, and go on.

    The store was opened before, so another file in its place has not always been there; and once a step has
    succeeded, an operator can end whatever comes of Redis, a rule changed by mistake for one. Then this goes on
    without having to be started anew.

    Raises:
        RedisError: at the first step, and no waiting heals it: wrong credentials, a command that the user may not run.
    """
    delay = _FIRST_DELAY_S
    proven = False
    report = TroubleReport(redis, f"projector {socket.gethostname()}-{os.getpid()} {name}")
    while not stop.is_set():
        meter.turn(name)
        try:
            step()
        except (RedisError, StoreUnavailable, StoreForeign) as error:
            if not (proven or _is_passing(error)):
                raise
            if delay == _FIRST_DELAY_S:
                _log.warning("%s interrupted, trying on error=%s reason=%s", name, type(error).__name__, error)
            stop.wait(delay)
            delay = min(2 * delay, _LAST_DELAY_S)
            # After a failover the old connection still talks to the former primary.
            redis.connection_pool.disconnect()
            with suppress(RedisError):
                recover()
            report.meet(error)
        else:
            if delay != _FIRST_DELAY_S:
                _log.info("%s goes on", name)
            delay = _FIRST_DELAY_S
            proven = True
            report.end()
        report.publish()
    report.withdraw()


def _is_passing(error: Exception) -> bool:
    return not isinstance(error, RedisError) or is_passing(error) or is_wrong_type(error)
