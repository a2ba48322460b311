"""`python -m tests.browser`: the pictures of docs/page.md, taken anew of the demo."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from app.embedded import VOLATILE, EmbeddedServer
from benchmarks.browser import MISSING, browsing, chromium
from feedback import FeedbackClient
from feedback.connection import connect
from feedback.results import ItemList, Ok
from tests.browser.demo import NOW
from tests.browser.serving import Demonstration, demonstrating

_PICTURES = Path(__file__).parents[2] / "docs" / "screenshots"
_MOST_BYTES = 200_000
_WIDE, _TALL, _PHONE = (1120, 860), (1120, 1180), (360, 740)
_HERO, _CONTESTED = "checkout-rounding", "answer-3"


def main() -> int:
    """1 when there is no browser, or a picture is too large."""
    if chromium() is None:
        print(MISSING, file=sys.stderr)
        return 1
    _PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        _server(Path(home, "server")) as url,
        demonstrating(url, Path(home)) as demo,
        browsing() as browser,
    ):
        _take_all(demo, browser)
    large = [path.name for path in _PICTURES.glob("*.png") if path.stat().st_size > _MOST_BYTES]
    if large:
        print(f"more than {_MOST_BYTES} bytes: {', '.join(large)}", file=sys.stderr)
    return bool(large)


def _take_all(demo: Demonstration, browser: Browser) -> None:
    with _page(browser, demo, "#/") as page:
        _take(page, "sessions")
    for theme in ("light", "dark"):
        with _page(browser, demo, f"#/s/{_HERO}", theme=theme, size=_TALL) as page:
            page.get_by_text("Tool", exact=True).first.click()
            _take(page, f"session-{theme}")
    with _page(browser, demo, f"#/s/{_HERO}", size=_PHONE, scale=2) as page:
        _take(page, "session-phone")
    with _page(browser, demo, "#/overview", size=_TALL) as page:
        _take(page, "overview")
    with _page(browser, demo, f"#/s/{_HERO}") as page:
        _press(page, "j", "j", "j", "n")
        page.keyboard.type("Says which refunds were looked at.")
        _contest(demo)
        page.get_by_text("grace rated this just now").wait_for()
        _press(page, "Control+Enter")
        page.get_by_role("button", name="Use mine").scroll_into_view_if_needed()
        page.mouse.wheel(0, 120)
        _take(page, "conflict")


def _contest(demo: Demonstration) -> None:
    """Somebody else rates the answer that is being written about."""
    with connect(demo.settings.redis_url) as redis, FeedbackClient(redis, clock_ms=demo.clock) as client:
        listed = client.list(_HERO)
        assert isinstance(listed, Ok)
        assert isinstance(listed.value, ItemList)
        (version,) = (item.version for item in listed.value.items if item.message_id == _CONTESTED)
        note = "Refunds by voucher do round."
        client.put(_HERO, _CONTESTED, "negative", note=note, if_version=version, actor="grace")


@contextmanager
def _page(
    browser: Browser,
    demo: Demonstration,
    address: str,
    *,
    theme: str = "light",
    size: tuple[int, int] = _WIDE,
    scale: int = 1,
) -> Iterator[Page]:
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(
        viewport=viewport,  # type: ignore[arg-type]  # a dict of these two
        device_scale_factor=scale,
        color_scheme=theme,  # type: ignore[arg-type]  # light or dark
        locale="en-GB",
        timezone_id="Etc/UTC",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.clock.set_fixed_time(NOW / 1000)
    page.goto(f"{demo.url}/{address}")
    page.get_by_text("live", exact=True).wait_for()
    page.locator(".sessions li, .answer [aria-pressed=true], table.shares").first.wait_for()
    yield page
    context.close()


def _press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def _take(page: Page, name: str) -> None:
    page.wait_for_timeout(400)  # for fonts and scrolling to settle: a picture, not a test
    page.screenshot(path=_PICTURES / f"{name}.png")


@contextmanager
def _server(home: Path) -> Iterator[str]:
    home.mkdir()
    server = EmbeddedServer(home, VOLATILE)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
