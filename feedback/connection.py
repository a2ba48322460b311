"""Connections to Redis or Valkey as this system wants them.

redis-py repeats a command ten times when its answer got lost. Ours is switched off: each caller
here knows whether its command may be repeated, and for how long (DESIGN, "Queue topology").
"""

from redis import Redis
from redis import asyncio as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from feedback.errors import QueueUnavailable

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


def connect(url: str) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`, without hidden retries. Nothing is sent yet.

    Raises:
        QueueUnavailable: the URL is not one.
    """
    try:
        return Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise QueueUnavailable(f"not a Redis URL: {error}") from None


def connect_async(url: str) -> aio.Redis:
    """As `connect`, for asyncio."""
    try:
        return aio.Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            socket_keepalive=True,
            retry=AsyncRetry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise QueueUnavailable(f"not a Redis URL: {error}") from None


def is_passing(error: RedisError) -> bool:
    """Whether waiting may help: the connection broke, or the server said so."""
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, RedisConnectionError | RedisTimeoutError) or any(
        word in str(error) for word in PASSING_REPLIES
    )
