"""A gateway over a demo: for the tests of the page, and for its pictures."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from feedback.settings import Settings
from tests.browser.demo import Clock, rate_demo, write_demo
from tests.harness import serving, settings_for
from tests.integration.gateway_serving import gateway_serving


class Demonstration(NamedTuple):
    """A system under the demo, its gateway's URL, and its clock."""

    settings: Settings
    url: str
    clock: Clock


@contextmanager
def demonstrating(redis_url: str, home: Path, **more: object) -> Iterator[Demonstration]:
    """The demo, rated and served. The server must be empty."""
    settings, clock = settings_for(redis_url, home, gateway_port=free_port(), **more), Clock()
    write_demo(Path(settings.sessions))
    with serving(settings, clock_ms=clock):
        rate_demo(redis_url, clock)
        with gateway_serving(settings, clock_ms=clock) as url:
            yield Demonstration(settings, url, clock)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
