"""People rate answers on the page: by mouse and keys, together, against each other, and when something fails."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from feedback import FeedbackClient
from feedback.connection import connect
from feedback.model import Item, Rating
from feedback.results import ItemList, Ok
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.browser.demo import NOW
from tests.browser.serving import Demonstration, free_port
from tests.harness import wait_until
from tests.integration.gateway_serving import caller, gateway_serving

pytestmark = pytest.mark.server


@pytest.fixture
def session(demo: Demonstration) -> str:
    """A Session of its own, with three answers, that the gateway lists: it looks at most once a second."""
    session_id = f"rated-{uuid4()}"
    with LogWriter(Path(demo.settings.sessions), session_id, created_at=NOW, cwd="/home/ada/rated") as log:
        for turn in range(1, 4):
            ids = {"user_id": f"q{turn}", "assistant_id": f"a{turn}"}
            log.append(exchange(turn, f"Question {turn}?", f"This is answer {turn}.", **ids))
    with caller(demo.url) as client:
        wait_until(lambda: client.get("/sessions", params={"text": session_id}).json()["total"], "it is listed")
    return session_id


@pytest.fixture
def grace(demo: Demonstration) -> Iterator["Somebody"]:
    with connect(demo.settings.redis_url) as redis, FeedbackClient(redis, clock_ms=demo.clock) as client:
        yield Somebody(client)


class Somebody:
    """Somebody else, who rates at the same time."""

    def __init__(self, client: FeedbackClient) -> None:
        self._client = client

    def items(self, session_id: str) -> dict[str, Item]:
        listed = self._client.list(session_id)
        assert isinstance(listed, Ok)
        assert isinstance(listed.value, ItemList)
        return {item.message_id: item for item in listed.value.items}

    def rate(self, session_id: str, message_id: str, rating: Rating | None, note: str | None = None) -> None:
        item = self.items(session_id).get(message_id)
        version = item.version if item else None
        if rating is None:
            assert self._client.delete(session_id, message_id, if_version=version, actor="grace").ok
        else:
            assert self._client.put(session_id, message_id, rating, note=note, if_version=version, actor="grace").ok


def opened(page: Page, url: str, session_id: str) -> Locator:
    """Opens a Session; its answers, once their ratings are there and nothing will be missed."""
    page.goto(f"{url}/#/s/{session_id}")
    expect(page.locator(".progress")).to_contain_text("rated")
    return page.get_by_role("article")


def thumb(answer: Locator, rating: Rating) -> Locator:
    return answer.get_by_role("button", name=f"{rating}")


def said(page: Page, words: str) -> None:
    """What screen readers are told."""
    expect(page.locator("#said")).to_have_text(words)


def test_answers_are_rated_by_keys_alone(page: Page, demo: Demonstration, session: str, grace: Somebody) -> None:
    """j and k, + and -, n, Ctrl+Enter, Esc: from the list to a rating with a note, and back where one was."""
    page.goto(f"{demo.url}/#/?text={session}")
    expect(page.locator(".sessions li")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    answers = opened(page, demo.url, session)
    page.keyboard.press("+")
    said(page, "Choose an answer first, with j and k.")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(answers.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(answers.nth(0)).to_be_focused()
    page.keyboard.press("+")
    said(page, "Answer 1 rated positive.")
    expect(thumb(answers.nth(0), "positive")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("n")
    expect(page.get_by_role("textbox", name="Note on answer 1")).to_be_focused()
    page.keyboard.type("j+-n? are letters here")
    page.keyboard.press("Control+Enter")
    said(page, "Answer 1 rated positive, with a note.")
    expect(answers.nth(0)).to_be_focused()
    page.keyboard.press("-")
    said(page, "Answer 1 rated negative, with a note.")
    item = grace.items(session)["a1"]
    assert (item.rating, item.note) == ("negative", "j+-n? are letters here")
    # A note that was begun is not lost by leaving it.
    page.keyboard.press("n")
    page.keyboard.press("End")
    page.keyboard.type("!")
    page.keyboard.press("Escape")
    expect(answers.nth(0)).to_be_focused()
    page.keyboard.press("n")
    expect(page.get_by_role("textbox", name="Note on answer 1")).to_have_value("j+-n? are letters here!")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.get_by_label("Single keys are shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("+")
    page.keyboard.press("j")
    expect(thumb(answers.nth(0), "negative")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Question 1?")).to_be_focused()
    expect(page.get_by_label("Search Sessions")).to_have_value(session)


def test_a_note_waits_for_a_rating_and_goes_with_it(
    page: Page, demo: Demonstration, session: str, grace: Somebody
) -> None:
    answers = opened(page, demo.url, session)
    answers.nth(2).get_by_role("button", name="Add a note to answer 3").click()
    page.keyboard.type("both at once")
    page.keyboard.press("Control+Enter")
    said(page, "Choose positive or negative first: a note goes with a rating.")
    thumb(answers.nth(2), "negative").click()
    expect(answers.nth(2).get_by_text("both at once")).to_be_visible()
    assert (grace.items(session)["a3"].rating, grace.items(session)["a3"].note) == ("negative", "both at once")
    expect(page.get_by_text("1 of 3 answers rated")).to_be_visible()
    answers.nth(2).get_by_role("button", name="Remove the rating of answer 3").click()
    said(page, "Rating of answer 3 removed.")
    assert grace.items(session) == {}


def test_what_somebody_else_rates_shows_at_once(
    page: Page, context: BrowserContext, demo: Demonstration, session: str, grace: Somebody
) -> None:
    """In the Session, in a list in another tab; and nobody's writing is disturbed."""
    answers = opened(page, demo.url, session)
    tab = context.new_page()
    tab.goto(f"{demo.url}/#/?text={session}")
    expect(tab.get_by_text("unrated", exact=True)).to_be_visible()
    expect(tab.get_by_text("live", exact=True)).to_be_visible()
    answers.nth(1).get_by_role("button", name="Add a note").click()
    page.keyboard.type("still writing")
    grace.rate(session, "a1", "negative", "Not what I asked.")
    expect(answers.nth(0).get_by_text("Not what I asked.")).to_be_visible()
    said(page, "grace rated answer 1 negative.")
    expect(page.get_by_role("textbox", name="Note on answer 2")).to_be_focused()
    expect(page.get_by_role("textbox", name="Note on answer 2")).to_have_value("still writing")
    expect(tab.locator(".counts .down")).to_contain_text("1")
    grace.rate(session, "a1", None)
    said(page, "grace took the rating of answer 1 back.")
    expect(thumb(answers.nth(0), "negative")).to_have_attribute("aria-pressed", "false")
    expect(tab.get_by_text("unrated", exact=True)).to_be_visible()


def test_an_answer_that_comes_late_hides_nothing(
    page: Page, demo: Demonstration, session: str, grace: Somebody
) -> None:
    """What somebody else did after a change of mine was applied stands, even if I hear of mine last."""
    answers = opened(page, demo.url, session)

    def overtake(route: Route) -> None:
        response = route.fetch()
        grace.rate(session, "a1", "negative", "later")
        route.fulfill(response=response)

    page.route("**/feedback/a1", overtake)
    thumb(answers.nth(0), "positive").click()
    expect(answers.nth(0).get_by_text("later")).to_be_visible()
    expect(thumb(answers.nth(0), "negative")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("1 of 3 answers rated")).to_be_visible()


def test_a_conflict_is_settled_by_whoever_meets_it(
    page: Page, demo: Demonstration, session: str, grace: Somebody
) -> None:
    """Theirs and mine side by side; neither is lost before somebody chose."""
    grace.rate(session, "a1", "positive")
    answers = opened(page, demo.url, session)

    def collide(note: str) -> Locator:
        """Somebody else rates while this note is written."""
        answers.nth(0).get_by_role("button", name="note").click()
        page.get_by_role("textbox", name="Note on answer 1").fill(note)
        grace.rate(session, "a1", "negative", f"against {note}")
        expect(answers.nth(0).get_by_text("grace rated this just now")).to_be_visible()
        page.keyboard.press("Control+Enter")
        panel = page.get_by_role("region", name="Conflict on answer 1")
        expect(panel.get_by_role("heading", name="Somebody was faster")).to_be_focused()
        expect(panel.get_by_text(f"against {note}")).to_be_visible()
        expect(panel.get_by_text(note, exact=True)).to_be_visible()
        assert grace.items(session)["a1"].note == f"against {note}"
        return panel

    collide("one").get_by_role("button", name="Keep theirs").click()
    expect(answers.nth(0).get_by_text("against one")).to_be_visible()
    expect(page.get_by_role("region", name="Conflict on answer 1")).to_have_count(0)
    assert grace.items(session)["a1"].note == "against one"

    grace.rate(session, "a1", "positive", "before")
    expect(answers.nth(0).get_by_text("before")).to_be_visible()
    panel = collide("two")
    # It goes on while the panel is open: what stands there is shown, and is what "mine" then replaces.
    grace.rate(session, "a1", None)
    expect(panel.get_by_text("They removed the rating.")).to_be_visible()
    panel.get_by_role("button", name="Use mine").click()
    said(page, "Answer 1 rated positive, with a note.")
    assert (grace.items(session)["a1"].rating, grace.items(session)["a1"].note) == ("positive", "two")


def test_failures_are_said_in_words_and_can_be_tried_again(
    page: Page, context: BrowserContext, demo: Demonstration, session: str, grace: Somebody
) -> None:
    """With the same key: what arrived after all has one effect."""
    answers = opened(page, demo.url, session)
    keys = list[str]()
    page.on("request", lambda request: keys.append(request.headers.get("idempotency-key", "")))
    context.set_offline(True)
    thumb(answers.nth(0), "positive").click()
    words = "Not saved. The gateway does not answer. Is it running? Check the connection, then try again."
    expect(answers.nth(0).get_by_text(words)).to_be_visible()
    said(page, words)
    context.set_offline(False)
    answers.nth(0).get_by_role("button", name="Try again").click()
    said(page, "Answer 1 rated positive.")
    assert grace.items(session)["a1"].rating == "positive"
    used = [key for key in keys if key]
    assert len(used) == 2
    assert len(set(used)) == 1
    for note, sentence in [
        ("x" * 8193, "Not saved. The note has 8193 bytes, 8192 are allowed. Shorten it."),
        ("   ", "Not saved. The note holds nothing but white space. Write something, or leave the note out."),
    ]:
        answers.nth(0).get_by_role("button", name="note").click()
        page.get_by_role("textbox", name="Note on answer 1").fill(note)
        page.keyboard.press("Control+Enter")
        expect(answers.nth(0).get_by_text(sentence)).to_be_visible()
        expect(page.get_by_role("textbox", name="Note on answer 1")).to_have_value(note)
        page.keyboard.press("Escape")
    page.goto(f"{demo.url}/#/s/nobody")
    expect(page.get_by_role("alert")).to_contain_text("There is no such Session. It may have been removed.")
    page.goto(f"{demo.url}/#/s/%2E%2E")
    expect(page.get_by_role("alert")).to_contain_text("Browsers cannot name the id “..” in an address.")


def test_events_go_on_where_they_ended(page: Page, demo: Demonstration, session: str, grace: Somebody) -> None:
    """What was rated while the gateway was gone shows when it is back, without anybody's doing."""
    settings = replace(demo.settings, gateway_port=free_port())
    with gateway_serving(settings, clock_ms=demo.clock) as url:
        answers = opened(page, url, session)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_text("not live: connecting")).to_be_visible()
    grace.rate(session, "a2", "positive", "meanwhile")
    with gateway_serving(settings, clock_ms=demo.clock):
        expect(answers.nth(1).get_by_text("meanwhile")).to_be_visible()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        page.goto("about:blank")


def test_a_token_is_asked_for_and_stays_in_the_tab(
    page: Page, demo: Demonstration, session: str, tmp_path: Path
) -> None:
    """Never in an address, a cookie or on the disk; a wrong one is said to be, one that only reads cannot rate."""
    tokens = TokenFile(tmp_path / "tokens.json")
    reading, _ = tokens.create("reader", (Scope.READ,), now_ms=0)
    rating, _ = tokens.create("ada", tuple(Scope), now_ms=0)
    addresses = list[str]()
    page.on("request", lambda request: addresses.append(request.url))
    guarded = replace(demo.settings, gateway_tokens=str(tmp_path / "tokens.json"), gateway_port=0)
    with gateway_serving(guarded, clock_ms=demo.clock) as url:
        page.goto(f"{url}/#/s/{session}")
        dialog = page.get_by_role("dialog", name="Who are you?")
        expect(dialog).to_contain_text("This gateway wants to know who rates.")
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("The token does not count")
        page.get_by_label("Token").fill(reading)
        page.keyboard.press("Enter")
        answers = page.get_by_role("article")
        expect(answers).to_have_count(3)
        expect(page.get_by_text("0 of 3 answers rated")).to_be_visible()
        thumb(answers.nth(0), "positive").click()
        expect(answers.nth(0)).to_contain_text("The token does not allow to rate. Ask for a token that may rate")
        page.evaluate("sessionStorage.clear()")
        page.reload()
        page.get_by_label("Token").fill(rating)
        page.keyboard.press("Enter")
        expect(page.get_by_text("0 of 3 answers rated")).to_be_visible()
        thumb(answers.nth(0), "positive").click()
        said(page, "Answer 1 rated positive.")
        expect(answers.nth(0)).to_contain_text("ada")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert not any(reading in address or rating in address for address in [*addresses, page.url])
        page.goto("about:blank")
