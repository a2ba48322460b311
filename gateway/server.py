"""Listening: uvicorn with bounds of its own, a port that is known before it serves, and an end that is in order."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from feedback.calls import wall_clock_ms
from feedback.errors import SettingsInvalid
from feedback.settings import Settings
from gateway.address import listen, url_of
from gateway.app import create_app
from gateway.context import Gateway
from gateway.meter import Meter
from gateway.protocol import BoundedProtocol

MOST_CONNECTIONS = 4096
IDLE_S = 30
"""Seconds that a connection without a request stays open."""

_OFF = Meter()
_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Stops when an event of the process says so; signals are the process's business."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, stop: threading.Event, meter: Meter) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._meter = meter
        self._stop = stop

    async def on_tick(self, counter: int) -> bool:
        self._meter.turn()
        self.should_exit = self.should_exit or self._stop.is_set()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First: what goes on for as long as its reader wants would keep the server from its end.
        self._gateway.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_gateway(
    settings: Settings,
    stop: threading.Event,
    announce: Callable[[str], None],
    *,
    clock_ms: Callable[[], int] = wall_clock_ms,
    meter: Meter = _OFF,
) -> None:
    """Serve until `stop` is set, then finish what is under way, within `shutdown_grace` seconds.

    `announce` is told the URL as soon as connections are accepted, `meter` what is done.

    Raises:
        SettingsInvalid: a setting of the gateway is malformed, address or certificate cannot be used, or everybody
            could use it from elsewhere.
        QueueUnavailable: `redis_url` is no URL.
    """
    gateway = Gateway(settings, clock_ms=clock_ms)
    with listen(settings) as listener:
        config = _config(settings, meter.measured(create_app(gateway)))
        url = url_of(settings, listener.getsockname()[1])
        if not gateway.guard.authenticator.is_required:
            sentence = "everybody on this machine may rate, and whom a proxy on it lets in: no tokens, no issuer url=%s"
            _log.warning(sentence, url)
        announce(url)
        uvloop.run(_Server(config, gateway, stop, meter).serve([listener]))


def _config(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    _check_certificate(settings)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
        ssl_certfile=settings.gateway_certificate or None,
        ssl_keyfile=settings.gateway_key or None,
    )
    try:
        config.load()
    except OSError as error:  # of which SSLError is one
        raise SettingsInvalid(f"gateway_certificate, gateway_key: {error}") from None
    return config


def _check_certificate(settings: Settings) -> None:
    """Refuse files of which the web server would say neither the setting nor the path.

    Raises:
        SettingsInvalid: saying both.
    """
    if settings.gateway_key and not settings.gateway_certificate:
        raise SettingsInvalid("gateway_key: needs gateway_certificate")
    for name in ("gateway_certificate", "gateway_key"):
        path: str = getattr(settings, name)
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            raise SettingsInvalid(f"{name}: {path}: {error.strerror}") from None
