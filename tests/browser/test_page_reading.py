"""People find Sessions and read them on the page: whoever they are, whatever they read with, whatever a log holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from feedback import FeedbackClient
from feedback.connection import connect
from persistence.session_log import LogWriter
from persistence.session_log.events import assistant_message, exchange, user_message
from tests.browser.demo import NOW, Step, Tool, answer, tool_result
from tests.browser.serving import Demonstration
from tests.unit.test_gateway_shown import ATTACKS

pytestmark = pytest.mark.server

AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
HERO = "#/s/checkout-rounding"
# A directory's name is no text of a log, but it is shown.
CWD = "/tmp/<img src=x onerror=pwned()>"


@pytest.fixture(scope="module")
def hostile(demo: Demonstration) -> str:
    """A Session that would take the page over, in all that a log, and a note, may hold."""
    session_id = "<script>pwned()</script>\"'><img src=x onerror=pwned()>"
    attack = "\n\n".join(ATTACKS)
    tool = Tool("<img src=x onerror=pwned()>", f'{{"a": "{ATTACKS[1]}"}}', attack, failed=True)
    with LogWriter(Path(demo.settings.sessions), session_id, created_at=NOW, cwd=CWD) as log:
        log.append([{"type": "session/title", "data": {"title": attack}}, user_message("q1", attack)])
        # An id of any kind; the browser has to address it.
        log.append([answer("a/1?#%2F<b>-7", Step(attack, attack, (tool,)), ATTACKS[1]), tool_result("call-7-0", tool)])
        log.append([user_message("q2", "wide " + "x" * 3000), answer("a2", Step("```\n" + "y" * 3000 + "\n```"), "m")])
    with connect(demo.settings.redis_url) as redis, FeedbackClient(redis, clock_ms=demo.clock) as client:
        assert client.put(session_id, "a2", "negative", note=attack, actor="<b>actor</b>").ok
    return session_id


@pytest.fixture(scope="module")
def marked(demo: Demonstration) -> str:
    """A fork that was compacted, and damaged further on."""
    session_id = "marked"
    with LogWriter(
        Path(demo.settings.sessions),
        session_id,
        created_at=NOW,
        cwd="/home/ada/forks",
        compression="none",
        parent_session="checkout-rounding",
        seed_length=2,
    ) as log:
        log.append([user_message("q0", "Inherited question"), assistant_message("a0", "Inherited answer")])
        log.append(exchange(1, "First question", "First answer", user_id="q1", assistant_id="a1"))
        log.append([assistant_message("s", "What was said so far.", replaces=(3, 5))])
        long = "x" * 9000
        tools = Tool("one", f"{long}1", f"{long}2"), Tool("two", f"{long}3", "short")
        log.append([answer("a-3", Step("|a\n|-\n" * 5000, tool=tools), "m"), tool_result("call-3-0", tools[0])])
        sound = log.path.stat().st_size
        log.append(exchange(2, "Second question", "Second answer", user_id="q2", assistant_id="a2"))
        path = log.path
    data = path.read_bytes()
    path.write_bytes(data[:sound] + b"{broken}\n" + data[sound:])
    return session_id


def go(page: Page, demo: Demonstration, address: str) -> None:
    """Opens an address, until what it shows is there."""
    page.goto("about:blank")
    page.goto(f"{demo.url}/{address}")
    expect(page.locator(".sessions li, .progress, table.shares").first).not_to_be_empty()


def test_sessions_are_found_by_words_filters_project_and_model(page: Page, demo: Demonstration) -> None:
    go(page, demo, "#/")
    page.keyboard.press("/")
    page.keyboard.type("CENT shop")
    expect(page.locator(".sessions li")).to_have_count(2)
    expect(page.locator(".sessions .title")).to_have_text(
        ["Which orders are off by a cent?", "Totals differ by a cent at checkout"]
    )
    page.keyboard.press("Escape")
    page.get_by_label("Negative").check(force=True)
    expect(page.locator(".sessions li:not(:has(.down))")).to_have_count(0)
    page.get_by_label("Model").select_option(label="wren-mini (4)")
    expect(page.locator(".sessions li")).to_have_count(3)
    page.get_by_label("Project").select_option(label="shop (5)")
    expect(page.locator(".sessions li")).to_have_count(1)
    expect(page.locator(".sessions .title")).to_have_text(["Which orders are off by a cent?"])
    # The address says it all: it can be kept, sent, and gone back to.
    page.reload()
    expect(page.locator(".sessions li")).to_have_count(1)
    expect(page.get_by_label("Negative")).to_be_checked()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Which orders are off by a cent?")
    expect(page.get_by_text("subagent")).to_be_visible()
    page.get_by_role("link", name="All Sessions").click()
    expect(page.get_by_role("link", name="Which orders are off by a cent?")).to_be_focused()
    page.get_by_label("Search Sessions").fill("nothing is called this")
    expect(page.get_by_text("No Session matches.")).to_be_visible()


def test_a_transcript_is_readable(page: Page, demo: Demonstration, marked: str) -> None:
    """Markdown as such, tools folded with their answers, what was replaced or inherited marked, damage said.

    What is cut comes whole on request, each part its own; what is too intricate is shown as it is.
    """
    go(page, demo, HERO)
    second = page.get_by_role("article", name="Answer 2")
    expect(second.locator("pre[data-language=python]")).to_contain_text("def gross(line: Line)")
    expect(second.get_by_role("table")).to_contain_text("59.97 €")
    tool = page.locator("details.tool-call").first
    expect(tool.get_by_text("shop/pricing/cart.py:41")).to_be_hidden()
    tool.locator("summary").click()
    expect(tool.get_by_text("shop/pricing/cart.py:41")).to_be_visible()
    expect(page.locator("details.tool-call summary").nth(1)).to_contain_text("failed")
    expect(page.get_by_text("Two places may round")).to_be_hidden()
    page.goto(f"{demo.url}/#/s/{marked}")
    expect(page.get_by_role("link", name="checkout-rounding")).to_be_visible()
    expect(page.get_by_text("copied from the Session this was forked from")).to_have_count(2)
    expect(page.get_by_text("First answer")).to_be_hidden()
    folded = page.get_by_text("replaced at", exact=False)
    expect(folded).to_have_count(2)
    folded.nth(1).click()
    expect(page.get_by_text("First answer")).to_be_visible()
    expect(page.get_by_text("stands for earlier messages (compacted)")).to_be_visible()
    expect(page.get_by_role("alert").last).to_contain_text("Here the transcript stops.")
    page.keyboard.press("j")
    expect(page.get_by_role("article", name="Answer 1")).to_be_focused()
    expect(page.get_by_text("Shown as plain text")).to_be_visible()
    expect(page.get_by_role("article").last.locator("pre.raw").first).to_contain_text("|a\n|-\n")
    for name, place, last in (("one", 0, "1"), ("one", 1, "2"), ("two", 0, "3")):
        fold = page.locator("details.tool-call", has_text=name)
        if place == 0:
            fold.locator("summary").click()
        fold.get_by_role("button", name="Show all 9,001 characters").first.click()
        expect(fold.locator("pre.raw").nth(place)).to_have_text("x" * 9000 + last)


def test_nothing_in_a_log_or_a_note_runs_or_loads(page: Page, demo: Demonstration, hostile: str) -> None:
    """In titles, prompts, answers, tools, ids, notes: text. No other host is ever asked for anything."""
    asked, violations = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: violations.append(message.text) if "Security" in message.text else None)
    page.add_init_script(
        "globalThis.pwned = () => { globalThis.wasPwned = true; }; globalThis.alert = globalThis.pwned;"
    )
    go(page, demo, "#/?rated=negative")
    go(page, demo, f"#/s/{page.evaluate('encodeURIComponent', hostile)}")
    expect(page.get_by_role("article")).to_have_count(2)
    for folded in page.locator("details > summary").all():
        folded.click()
    expect(page.locator(".note:visible")).to_contain_text("pwned()")
    go(page, demo, "#/overview")
    expect(page.get_by_role("rowheader", name="<img src=x onerror=pwned()>")).to_have_count(1)
    go(page, demo, f"#/s/{page.evaluate('encodeURIComponent', hostile)}")
    page.keyboard.press("j")
    page.keyboard.press("+")
    expect(page.locator("#said")).to_have_text("Answer 1 rated positive.")
    assert page.evaluate("globalThis.wasPwned") is None
    forbidden = "main :is(script, style, img, iframe, object, form[action], [onclick], [onerror], [style])"
    expect(page.locator(forbidden)).to_have_count(0)
    links = page.evaluate("[...document.querySelectorAll('.prose a')].map((link) => link.protocol)")
    assert set(links) == {"https:"}
    assert {url.split("/")[2] for url in asked if url.startswith("http")} == {demo.url.removeprefix("http://")}
    assert violations == []


def test_html_from_elsewhere_than_the_gateways_markdown_is_refused(page: Page, demo: Demonstration) -> None:
    """The page's policy: even a mistake in its own code could insert nothing, run nothing, load nothing."""
    go(page, demo, "#/")
    refused = page.evaluate(
        """() => {
            const tries = [
                () => { document.body.innerHTML = "<b>x</b>"; },
                () => trustedTypes.createPolicy("other", { createHTML: (html) => html }),
                () => { document.createElement("script").text = "1"; },
            ];
            return tries.map((attempt) => { try { attempt(); return "done"; } catch (error) { return error.name; } });
        }"""
    )
    assert refused == ["TypeError", "TypeError", "TypeError"]


@pytest.mark.parametrize("address", ["#/", HERO, "#/overview", "hostile"])
def test_pages_fit_a_phone(browser: Browser, demo: Demonstration, hostile: str, address: str) -> None:
    """360 pixels, and nothing hangs over the edge: not with words without an end, code, tables or conflicts."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    page.add_init_script(AUDIT)
    go(page, demo, f"#/s/{page.evaluate('encodeURIComponent', hostile)}" if address == "hostile" else address)
    for folded in page.locator("details > summary").all():
        folded.click()
    if address == HERO:
        page.get_by_role("button", name="Add a note to answer 1").click()
    assert page.evaluate("audit.overhang()") == 0
    small = [
        box
        for button in page.locator("main button:visible").all()
        if (box := button.bounding_box()) and box["height"] < 36
    ]
    assert small == []
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read_in_both_themes(browser: Browser, demo: Demonstration, theme: Any) -> None:
    """At least 4.5 : 1 (WCAG AA), computed for every text that is shown, with folds, editors and failures open."""
    context = browser.new_context(color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(AUDIT)
    seen = 0
    for address in ("#/", "#/overview", HERO):
        go(page, demo, address)
        for folded in page.locator("details > summary").all():
            folded.click()
        if address == HERO:
            page.keyboard.press("j")
            page.keyboard.press("n")
            context.set_offline(True)
            page.get_by_role("button", name="Rate answer 2 negative").click()
            expect(page.locator(".failure:visible")).to_be_visible()
            page.keyboard.press("Escape")
        found = page.evaluate("audit.faint()")
        assert found["found"] == [], address
        seen += found["seen"]
        context.set_offline(False)
    assert seen > 150
    context.close()


def test_everything_has_a_name_and_a_place_in_the_order(page: Page, demo: Demonstration) -> None:
    """What can be used bears a name of its own in the accessibility tree; Tab goes through it as it is read."""
    go(page, demo, HERO)
    names = named(
        page, {"button", "link", "textbox", "searchbox", "combobox", "radio", "article", "region", "dialog", "image"}
    )
    assert "" not in names
    rating = [name for name in names if "answer 1" in name]
    assert rating == [
        "Rating of answer 1",
        "Rate answer 1 positive",
        "Rate answer 1 negative",
        "Add a note to answer 1",
    ]
    page.evaluate("document.activeElement.blur()")
    order = list(tabbed(page, 12))
    assert order[:6] == ["Skip to content", "Session feedback", "Sessions", "Overview", "Keyboard help", "All Sessions"]
    assert order[-3:] == ["Rate answer 1 positive", "Rate answer 1 negative", "Add a note to answer 1"]
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Home")
    go(page, demo, "#/")
    names = named(page, {"button", "link", "textbox", "searchbox", "combobox", "radio", "list", "navigation", "search"})
    assert "" not in names
    for name in ("Search Sessions", "All", "Unrated", "Negative", "With notes", "Project", "Model", "Sessions"):
        assert name in names
    go(page, demo, "#/overview")
    picture = page.get_by_role("img", name="Ratings from 2026-09-28 to 2026-10-31:")
    expect(picture).to_be_visible()
    expect(page.get_by_role("row", name="wren-mini 2 3 40 % few ratings")).to_be_visible()
    page.get_by_text("The numbers").click()
    expect(page.get_by_role("row", name="2026-09-28 2 0")).to_be_visible()


def named(page: Page, roles: set[str]) -> list[str]:
    """The names of everything with these roles, as assistive technology gets them."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        node.get("name", {}).get("value", "")
        for node in nodes
        if not node["ignored"] and node.get("role", {}).get("value") in roles
    ]


def tabbed(page: Page, times: int) -> Iterator[str]:
    """What has the focus after each Tab."""
    for _ in range(times):
        page.keyboard.press("Tab")
        node = "({ ariaLabel, innerText, tagName }) => ariaLabel ?? (innerText.split('\\n')[0] || tagName)"
        yield page.evaluate(f"({node})(document.activeElement)")


def test_a_large_transcript_shows_its_first_screen_first(page: Page, demo: Demonstration) -> None:
    """What is asked for before anything shows does not grow with the log; the rest comes as it is scrolled to."""
    session_id = "five-megabytes"
    with LogWriter(Path(demo.settings.sessions), session_id, created_at=NOW, cwd="/home/ada/large") as log:
        for turn in range(1, 251):
            text = f"Answer {turn} of many.\n\n" + "Twenty thousand characters of prose, more or less. " * 400
            log.append(exchange(turn, "More?", text, user_id=f"q{turn}", assistant_id=f"a{turn}"))
    sizes = list[int]()

    def note(response: Response) -> None:
        if "/transcript" in response.url:
            sizes.append(int(response.headers["content-length"]))

    page.on("response", note)
    go(page, demo, f"#/s/{session_id}")
    expect(page.get_by_text("Answer 1 of many.")).to_be_visible()
    assert page.evaluate("performance.getEntriesByName('transcript').length") == 1
    shown = page.get_by_role("article").count()
    assert 0 < shown < 60
    # Not the key End: what comes into view grows to its real height, and pushes the end further away.
    page.get_by_role("button", name="Show more").scroll_into_view_if_needed()
    expect(page.get_by_role("article").nth(shown)).to_be_attached()
    assert max(sizes) < 300_000
