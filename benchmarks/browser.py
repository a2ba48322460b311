"""A headless Chromium, where one is installed: for benchmarks, tests and pictures of the page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

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
    """A headless browser with an empty profile. Only where `chromium` found one."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
