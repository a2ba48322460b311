"""Connections to Redis or Valkey as this system wants them.

redis-py repeats a command ten times when its answer got lost. Ours is switched off: each caller
here knows whether its command may be repeated, and for how long (DESIGN, "Queue topology").
"""

from typing import Any

from redis import ConnectionPool, Redis
from redis import asyncio as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from feedback.errors import QueueUnavailable
from feedback.sentinels import pool_like, pool_like_async, primary, primary_async, service_of

SOCKET_TIMEOUT_S = 5.0
"""A server that is silent for so long is taken for gone. Blocking commands ask for less than this."""
BLOCK_S = 4.0

# Answers that pass by themselves: the server is restarting, failing over, full, or cannot write its disk.
PASSING_REPLIES = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "MISCONF",
    "OOM",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "UNBLOCKED",
    "max number of clients",
)


# Otherwise redis-py reads its version from a file for each connection, and fails with that when there are no
# file descriptors left.
_DRIVER = DriverInfo()


def connect(url: str, *, timeout_s: float = SOCKET_TIMEOUT_S) -> Redis:
    """A client for `redis://`, `rediss://`, `unix://` or Sentinels (`feedback.sentinels`), without hidden retries.

    Nothing is sent yet. After `timeout_s` seconds of silence the server is taken for gone.

    Raises:
        QueueUnavailable: the URL is not one.
    """
    options = _options(url, timeout_s) | {"retry": Retry(NoBackoff(), 0)}
    try:
        service = service_of(url)
        return Redis.from_url(url, **options) if service is None else primary(service, **service.options | options)
    except ValueError as error:
        raise QueueUnavailable(f"not a Redis URL: {error}") from None


def connect_async(url: str) -> aio.Redis:
    """As `connect`, for asyncio."""
    options = _options(url, SOCKET_TIMEOUT_S) | {"retry": AsyncRetry(NoBackoff(), 0)}
    try:
        service = service_of(url)
        if service is None:
            return aio.Redis.from_url(url, **options)
        return primary_async(service, **service.options | options)
    except ValueError as error:
        raise QueueUnavailable(f"not a Redis URL: {error}") from None


def _options(url: str, timeout_s: float) -> dict[str, Any]:
    options = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "driver_info": _DRIVER}
    return options if url.startswith("unix:") else options | {"socket_keepalive": True}


def like(client: Redis) -> Redis:
    """A client of ours to the server of an existing one: own pool, raw answers, no hidden retries.

    A caller's client may decode answers, time out early or retry; none of that suits this protocol.
    """
    pool = client.connection_pool
    options = _kwargs_like(pool) | {"retry": Retry(NoBackoff(), 0)}
    # `from_pool`: closing the client closes the pool, which nobody else has.
    if isinstance(pool, SentinelConnectionPool):
        return Redis.from_pool(pool_like(pool, **options))
    return Redis.from_pool(ConnectionPool(**options))


def like_async(client: aio.Redis) -> aio.Redis:
    """As `like`, for asyncio."""
    pool = client.connection_pool
    options = _kwargs_like(pool) | {"retry": AsyncRetry(NoBackoff(), 0)}
    if isinstance(pool, AsyncSentinelConnectionPool):
        return aio.Redis.from_pool(pool_like_async(pool, **options))
    return aio.Redis.from_pool(aio.ConnectionPool(**options))


def _kwargs_like(pool: ConnectionPool | aio.ConnectionPool) -> dict[str, Any]:
    # A pool adds its own run-time state to the kwargs it was given; that must not be shared.
    run_time = ("maint_notifications", "orig_", "himport_registry", "retry", "connection_pool")
    portable = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(run_time)}
    if "lib_name" not in portable and "lib_version" not in portable:
        portable.setdefault("driver_info", _DRIVER)
    ours = {"decode_responses": False, "socket_timeout": SOCKET_TIMEOUT_S, "connection_class": pool.connection_class}
    return portable | ours


def is_passing(error: RedisError) -> bool:
    """Whether waiting may help: the connection broke, or the server said so."""
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, RedisConnectionError | RedisTimeoutError) or is_passing_reply(error)


def is_out_of_reach(error: BaseException | None) -> bool:
    """Whether this says that nobody answers at the address that was meant."""
    if not isinstance(error, RedisConnectionError | RedisTimeoutError) or isinstance(error, AuthenticationError):
        return False
    return not is_passing_reply(error)


def is_passing_reply(error: RedisError) -> bool:
    """Whether the server itself said that it will be well again: it is there, at the address that was meant."""
    # redis-py takes the codes that it knows (OOM, READONLY, ...) off the message, and the message off LOADING.
    said = f"{error.status_code} {error}"
    return isinstance(error, BusyLoadingError) or any(word in said for word in PASSING_REPLIES)
