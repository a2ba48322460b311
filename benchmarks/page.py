"""The page over many Sessions and a large one: lists and searches over HTTP, and what a browser takes to show them."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import msgspec
from playwright.sync_api import Page

from benchmarks.browser import MISSING, browsing, chromium
from benchmarks.deployment import deployed
from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.http import HOST, gateway_running
from benchmarks.measure import Run, in_blocks, wait_until
from benchmarks.sessions import message_ids, session_ids, write_large, write_sessions
from feedback import Put

_LARGE = "large"
_LARGE_BYTES = 5_000_000
_NO_LAG_MS = 100.0
"""What people take for at once."""
_A_SECOND_MS = 1000.0
_ANSWERS = 3


def pages(run: Run) -> list[Figure]:
    """10,000 Sessions listed, searched and filtered without lag; a transcript of 5 MB open in under a second."""
    sessions = session_ids(run.size(10_000, 20))
    rated = sessions[:: run.size(5, 4)]
    with run.home() as home, deployed(Path(home)) as system:
        root = Path(system.settings.sessions)
        write_sessions(root, sessions, _ANSWERS, projects=run.size(100, 3))
        write_large(root, _LARGE, run.size(_LARGE_BYTES, 100_000), compressed=False)
        answers = message_ids(_ANSWERS)
        puts = [Put(session, answers[at % _ANSWERS], "negative") for at, session in enumerate(rated)]
        for ticket in system.client.submit_many(puts):
            ticket.result(timeout=60)
        with gateway_running(system.settings, Path(home)) as (port, token):
            asked = _Asked(port, token)
            first = _first_look_ms(asked, len(sessions) + 1)
            figures = [figure(f"first look at {len(sessions)} logs, in the background", "ms", [[first]])]
            figures += _over_http(run, asked, len(sessions))
            asked.close()
            if chromium() is None:
                print(f"the browser's part is left out: {MISSING}", file=sys.stderr)
            else:
                figures += _in_browser(run, port, token)
    return figures


class _Asked:
    """One connection to the gateway that stays open."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = HTTPConnection(HOST, port)
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> bytes:
        """The answer's body."""
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == HTTPStatus.OK, body
        return body

    def close(self) -> None:
        self._connection.close()


def _first_look_ms(asked: _Asked, sessions: int) -> float:
    start = time.perf_counter()

    def all_are_read() -> bool:
        page = msgspec.json.decode(asked.get("/sessions"))
        return page["total"] == sessions and not page.get("reading")

    wait_until(all_are_read, "all logs are read")
    return 1000 * (time.perf_counter() - start)


def _over_http(run: Run, asked: _Asked, sessions: int) -> list[Figure]:
    paths = {
        f"{sessions} Sessions listed": "/sessions",
        "searched by two words": f"/sessions?text={quote('project-7 session-77')}",
        "those unrated": "/sessions?rated=unrated",
        "those rated negative, searched": "/sessions?rated=negative&text=session-5",
        "the overview": "/overview",
        "first page of the large transcript": f"/sessions/{_LARGE}/transcript",
    }

    def getter(path: str) -> Callable[[], bytes]:
        return lambda: asked.get(path)

    wait_until(lambda: not msgspec.json.decode(asked.get("/overview"))["unread"], "the overview is complete")
    rounds, each = run.size(5, 2), run.size(10, 2)
    health, *taken = in_blocks([getter("/healthz"), *map(getter, paths.values())], rounds=rounds, each=each)
    limit = Target("at most", _NO_LAG_MS, of="value")
    figures = [figure("a request that asks nobody", "ms", _ms(health))]
    for name, samples in zip(paths, taken, strict=True):
        figures.append(figure(name, "ms", _ms(samples), target=limit))
    return figures


def _in_browser(run: Run, port: int, token: str) -> list[Figure]:
    """What the page itself measures, from the click (or the key) to what is shown."""
    with browsing() as browser, closing(browser.new_context()) as context:
        context.add_init_script(f"sessionStorage.setItem('session-feedback.token', {token!r})")
        page = context.new_page()
        page.goto(f"http://{HOST}:{port}/")
        times = run.size(10, 2)
        opened = [_opening_ms(page, f"#/s/{_LARGE}", "transcript") for _ in range(times)]
        small = [_opening_ms(page, "#/s/session-1", "transcript") for _ in range(times)]
        lists = [_opening_ms(page, "#/", "list") for _ in range(times)]
        searched = [_searching_ms(page, f"session-{at}") for at in range(1, times + 1)]
    second = Target("at most", _A_SECOND_MS, of="value")
    return [
        figure("browser: the large transcript opened", "ms", [opened], target=second),
        compared("the same", "ms", [opened], "a transcript of 1 kB", [small]),
        figure("browser: the list opened", "ms", [lists]),
        figure("browser: a word typed, until its list is shown", "ms", [searched]),
    ]


def _opening_ms(page: Page, address: str, measure: str) -> float:
    """Goes there from the overview."""
    page.evaluate("location.hash = '#/overview'")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    page.evaluate(f"performance.clearMeasures(); location.hash = {address!r}")
    return _measured(page, measure)


def _searching_ms(page: Page, word: str) -> float:
    """The page waits 120 ms for the next key, which are in it."""
    page.evaluate("performance.clearMeasures()")
    page.get_by_label("Search Sessions").fill(word)
    return _measured(page, "search")


def _measured(page: Page, measure: str) -> float:
    # Not `wait_for_function`, which evaluates text: the page's policy refuses that.
    found = f"performance.getEntriesByName('{measure}').map((one) => one.duration)"
    wait_until(lambda: bool(page.evaluate(found)), f"the page measured {measure!r}")
    return float(page.evaluate(found)[0])


def _ms(rounds: list[list[float]]) -> list[list[float]]:
    """From microseconds."""
    return [[sample / 1000 for sample in one] for one in rounds]
