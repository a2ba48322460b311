"""Fixtures of the page's tests: one browser and one gateway over the demo for all of them."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from benchmarks.browser import MISSING, browsing, chromium
from feedback.connection import connect
from tests.browser.serving import Demonstration, demonstrating

PATIENCE_MS = 30_000
"""A browser on a busy machine; nothing waits for so long that goes well."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    if chromium() is None:
        pytest.skip(MISSING)
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="package")
def demo(browser: Browser, valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demonstration]:
    """Shared: a test that writes uses Sessions of its own. Nothing is made where there is no browser."""
    with connect(valkey_url) as redis:
        redis.flushall()
    with demonstrating(valkey_url, tmp_path_factory.mktemp("demo")) as demo:
        yield demo


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Somebody's browser, which remembers nothing. What breaks on the page fails the test."""
    broken = list[str]()
    context = browser.new_context(viewport={"width": 1000, "height": 800}, locale="en-GB", reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    context.on("weberror", lambda error: broken.append(str(error.error)))
    yield context
    context.close()
    assert broken == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()
