"""Servers that are found by asking Sentinels who is primary right now, through redis-py's own support.

    redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database][?option=value...]

User and password are the server's. `rediss+sentinel` is TLS to the Sentinels and to the server. Options are redis-py's
(`ssl_ca_certs`, ...), and `sentinel_username` and `sentinel_password` where the Sentinels ask for a password as well.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis import asyncio as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

SENTINEL_TIMEOUT_S = 1.0
"""A Sentinel that is silent for so long is passed over for the next."""

_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_PORT = 26379
_FAILURES = {"ConnectionError": "connection refused or broken", "TimeoutError": "no answer in time"}


class Service(NamedTuple):
    """A primary by its name, who knows where it is, and how to speak with both (redis-py's keyword arguments)."""

    name: str
    sentinels: tuple[tuple[str, int], ...]
    options: dict[str, Any]
    sentinel_options: dict[str, Any]


def service_of(url: str) -> Service | None:
    """The service that a URL names, or None where its scheme is another one.

    Raises:
        ValueError: the URL lacks a part; the message holds none of it that may be secret.
    """
    scheme, _, rest = url.partition("://")
    plain = _SCHEMES.get(scheme)
    if plain is None:
        return None
    authority, _, tail = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    path, _, query = tail.partition("?")
    name, _, database = path.partition("/")
    if not name or not (database or "0").isdecimal():
        raise ValueError(f"give {scheme}://host:port,host:port/service/database")
    options = parse_url(f"{plain}://{user}{at}localhost/{database or 0}?{query}")
    for surplus in ("host", "connection_class"):
        options.pop(surplus, None)
    sentinel_options = {
        option: options.pop(f"sentinel_{option}")
        for option in ("username", "password")
        if f"sentinel_{option}" in options
    }
    if plain == "rediss":
        options["ssl"] = True
        sentinel_options |= {option: value for option, value in options.items() if option.startswith("ssl")}
    return Service(name, tuple(_address(host) for host in hosts.split(",")), options, sentinel_options)


def primary(service: Service, **options: Any) -> Redis:
    """A client that asks for the primary whenever it connects. `options` are redis-py's, beside the URL's."""
    times = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    asked = service.sentinel_options | times | {"retry": Retry(NoBackoff(), 0)}
    return Redis.from_pool(PrimaryPool(service.name, _Sentinels(service.sentinels, sentinel_kwargs=asked), **options))


def primary_async(service: Service, **options: Any) -> aio.Redis:
    """As `primary`, for asyncio."""
    times = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    asked = service.sentinel_options | times | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinel = _AsyncSentinels(service.sentinels, sentinel_kwargs=asked)
    return aio.Redis.from_pool(AsyncPrimaryPool(service.name, sentinel, **options))


def pool_like(pool: SentinelConnectionPool, **options: Any) -> SentinelConnectionPool:
    """A pool of ours for the primary that somebody else's pool serves, or a replica of."""
    return PrimaryPool(pool.service_name, _Sentinels(**_sentinels_like(pool.sentinel_manager)), **options)


def pool_like_async(pool: AsyncSentinelConnectionPool, **options: Any) -> AsyncSentinelConnectionPool:
    """As `pool_like`, for asyncio."""
    return AsyncPrimaryPool(pool.service_name, _AsyncSentinels(**_sentinels_like(pool.sentinel_manager)), **options)


def _sentinels_like(manager: Sentinel | AsyncSentinel) -> dict[str, Any]:
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    return {
        "sentinels": [(kwargs["host"], kwargs["port"]) for kwargs in asked],
        "min_other_sentinels": manager.min_other_sentinels,
        "sentinel_kwargs": manager.sentinel_kwargs,
        # Where the primary's address as the Sentinels know it does not lead there.
        "force_master_ip": manager._force_master_ip,  # noqa: SLF001
    }


class _Sentinels(Sentinel):
    """redis-py's, without its clients' inner life in the message when none of them knows a primary."""

    def __init__(self, sentinels: Sequence[tuple[str, int]], **options: Any) -> None:
        super().__init__(sentinels, **options)  # type: ignore[no-untyped-call]  # redis-py gives none

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]  # as above
        except MasterNotFoundError as error:
            raise MasterNotFoundError(_nobody_names(service_name, self.sentinels, str(error))) from None
        return found


class _AsyncSentinels(AsyncSentinel):
    """As `_Sentinels`, for asyncio."""

    def __init__(self, sentinels: Sequence[tuple[str, int]], **options: Any) -> None:
        super().__init__(sentinels, **options)  # type: ignore[no-untyped-call]  # redis-py gives none

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = await super().discover_master(service_name)
        except AsyncMasterNotFoundError as error:
            raise AsyncMasterNotFoundError(_nobody_names(service_name, self.sentinels, str(error))) from None
        return found


def _nobody_names(service: str, sentinels: Sequence[Redis | aio.Redis], said: str) -> str:
    """redis-py tells only the kind of each failure: `<...> - network:ConnectionError`."""
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in sentinels]
    where = ", ".join(f"{kwargs['host']}:{kwargs['port']}" for kwargs in asked)
    kinds = sorted(set(re.findall(r" - \w+:(\w+)", said)))
    why = ", ".join(_FAILURES.get(kind, kind) for kind in kinds) or "they know none of that name that is well"
    return f"no Sentinel of {where} names a primary {service!r}: {why}"


class PrimaryPool(SentinelConnectionPool):
    """redis-py's pool, which ends its connections to the Sentinels with its own."""

    def __init__(self, name: str, sentinel: Sentinel, **options: Any) -> None:
        super().__init__(name, sentinel, **options)  # type: ignore[no-untyped-call]  # redis-py gives none

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.connection_pool.disconnect()


class AsyncPrimaryPool(AsyncSentinelConnectionPool):
    """As `PrimaryPool`, for asyncio."""

    def __init__(self, name: str, sentinel: AsyncSentinel, **options: Any) -> None:
        super().__init__(name, sentinel, **options)  # type: ignore[no-untyped-call]  # redis-py gives none

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.connection_pool.disconnect()


def _address(host: str) -> tuple[str, int]:
    """`name`, `name:port`, `[address]` or `[address]:port`."""
    name, bracket, port = host.rpartition("]") if host.startswith("[") else host.partition(":")
    port = port.removeprefix(":") if bracket == "]" else port
    name = name.removeprefix("[")
    if not name or not (port or "0").isdecimal():
        raise ValueError("a Sentinel is host:port")
    return name, int(port or _PORT)
