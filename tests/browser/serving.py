"""A browser, and a gateway over a demo: for the tests of the page, and for its pictures."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from feedback.settings import Settings
from tests.browser.demo import Clock, rate_demo, write_demo
from tests.harness import serving, settings_for
from tests.integration.gateway_serving import gateway_serving

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = "no Chromium on PATH, and FEEDBACK_CHROMIUM names none: apt-get install chromium"


def chromium() -> str | None:
    """Where the browser is: FEEDBACK_CHROMIUM, or the first of its usual names on PATH."""
    named = os.environ.get("FEEDBACK_CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """A headless browser with an empty profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


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
