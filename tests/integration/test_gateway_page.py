"""What the page reads over HTTP: lists with what is rated in them, transcripts page by page, the overview."""

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from feedback.errors import LogUnreadable
from feedback.settings import Settings
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from persistence.session_log import LogWriter, SessionLogs
from persistence.session_log.events import assistant_message, exchange
from persistence.sidecar import open_store
from persistence.sidecar.store import StoredTopology
from persistence.summaries import SessionSummaries
from persistence.transcripts import Transcript, open_transcript
from tests.harness import settings_for, wait_until
from tests.integration.gateway_serving import PATIENCE_S, caller, gateway_serving, segment
from tests.training_logs import CREATED_AT, Ratings, conversation, identity, item, write_log

pytestmark = pytest.mark.server

NASTY = "../a b/ü"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    """Five Sessions in two projects, some rated: no worker runs, so the store is all there is."""
    settings = settings_for(valkey_url, tmp_path, gateway_port=0)
    root = Path(settings.sessions)
    one, two = identity("/w/one"), identity("/w/two")
    write_log(root, "praised", conversation(2), of=one)
    write_log(root, "blamed", conversation(3, "no, <b>never</b>"), of=one)
    write_log(root, "silent", conversation(0) + exchange(1, "Umlaut Ü?", "", user_id="u", assistant_id="a")[:2], of=two)
    write_log(root, NASTY, conversation(1), of=two)
    write_log(root, "reborn", conversation(1), of=two)
    store = open_store(settings.sidecar_url)
    store.set_topology(StoredTopology(generation=1, partitions=1), replacing=None)
    ratings = Ratings(store)
    ratings.rate("praised", one, item("a1"), item("a2", at=CREATED_AT + DAY_MS, note="good"))
    ratings.rate("blamed", one, item("a1"), item("a3", "negative"))
    # Of another life of the Session, and of one that is gone: neither counts.
    ratings.rate("reborn", identity("/w/two", created_at=1), item("a1", "negative", note="old"))
    ratings.rate("gone", one, item("a1", "negative", note="where?"))
    ratings.commit()
    store.close()
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with gateway_serving(settings) as url, caller(url) as client:
        wait_until(lambda: not listed(client, "/sessions").get("reading"), "the logs are read")
        yield client


def listed(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(client: httpx.Client, query: str) -> list[str]:
    page = listed(client, f"/sessions?{query}")
    assert page["total"] == len(page["sessions"])
    return sorted(one["session"]["sessionId"] for one in page["sessions"])


def test_lists_are_narrowed_by_words_project_model_and_ratings(client: httpx.Client) -> None:
    assert ids(client, "") == sorted(["praised", "blamed", "silent", NASTY, "reborn"])
    assert ids(client, "rated=unrated") == sorted([NASTY, "reborn"])  # "silent" has nothing to rate
    assert ids(client, "rated=negative") == ["blamed"]
    assert ids(client, "rated=noted") == ["praised"]
    assert ids(client, "text=umlaut+%C3%BC") == ["silent"]
    assert ids(client, "project=/w/one&rated=negative&text=QUESTION") == ["blamed"]
    assert ids(client, "model=none") == []
    counts = {one["session"]["sessionId"]: one["feedback"] for one in listed(client, "/sessions")["sessions"]}
    assert counts["praised"] == {"positive": 2, "negative": 0, "notes": 1}
    assert counts["reborn"] == {"positive": 0, "negative": 0, "notes": 0}
    facets = listed(client, "/facets")
    assert facets["projects"] == [{"name": "/w/two", "sessions": 3}, {"name": "/w/one", "sessions": 2}]
    assert facets["feedback"] is True
    for query in ("rated=loved", "after=nowhere", f"after={'9' * 30}.1"):
        assert client.get(f"/sessions?{query}").json()["code"] == "InvalidRequest"


def test_the_overview_counts_what_stands_by_day_model_and_project(client: httpx.Client) -> None:
    def complete() -> Any:
        found = listed(client, "/overview")
        return found if not found["unread"] else None

    found = wait_until(complete, "the logs of rated Sessions are read")
    assert (found["positive"], found["negative"], found["notes"]) == (3, 1, 1)
    assert (found["ratedSessions"], found["sessions"], found["unknownAnswers"]) == (2, 5, 0)
    assert found["days"] == [
        {"day": "2023-11-14", "positive": 2, "negative": 1},
        {"day": "2023-11-15", "positive": 1, "negative": 0},
    ]
    assert found["projects"] == [{"positive": 3, "negative": 1, "name": "/w/one"}]
    assert found["models"] == [{"positive": 3, "negative": 1, "name": "example-1"}]


def test_what_is_rated_later_counts_at_once(client: httpx.Client, settings: Settings) -> None:
    """A rating that another process committed is in the next list: nothing is remembered past it."""
    assert NASTY in ids(client, "rated=unrated")
    store = open_store(settings.sidecar_url)
    ratings = Ratings(store)
    # A partition's sequences go on where they ended.
    ratings._sequence = store.heads([*ratings._epochs])[next(iter(ratings._epochs))]
    ratings.rate(NASTY, identity("/w/two"), item("a1", "negative"))
    ratings.commit()
    store.close()
    wait_until(lambda: ids(client, "rated=negative") == sorted(["blamed", NASTY]), "the rating counts")
    assert NASTY not in ids(client, "rated=unrated")


def test_readers_of_the_overview_do_not_wait_for_each_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads the logs for it; what is known by now has to do for the others."""
    reading, may_end = threading.Event(), threading.Event()

    def slow(logs: SessionLogs, session_id: str) -> AbstractContextManager[Transcript | None]:
        reading.set()
        assert may_end.wait(PATIENCE_S)
        return open_transcript(logs, session_id)

    monkeypatch.setattr("gateway.reading.overview.open_transcript", slow)
    with gateway_serving(settings) as url, caller(url) as another, ThreadPoolExecutor(1) as beside:
        wait_until(lambda: not listed(another, "/sessions").get("reading"), "the logs are read")
        first = beside.submit(listed, another, "/overview")
        try:
            assert reading.wait(PATIENCE_S)
            assert listed(another, "/overview")["unread"] > 0
        finally:
            may_end.set()
        first.result()
        wait_until(lambda: listed(another, "/overview")["unread"] == 0, "all logs are read")


def test_a_transcript_comes_whole_and_in_order_page_by_page(settings: Settings, client: httpx.Client) -> None:
    """However long it is, a page is bounded, and nothing is missing between two; then it may have grown."""
    root = Path(settings.sessions)
    with LogWriter(root, "long", created_at=CREATED_AT, cwd="/w/two") as log:
        for turn in range(300):
            log.append(exchange(turn, "q", f"answer {turn} " + "x" * 4000, user_id=f"u{turn}", assistant_id=f"a{turn}"))
            if turn == 100:
                log.append([assistant_message("summary", "In short.", replaces=(1, 3))])
    messages, after, sizes = list[dict[str, Any]](), "", list[int]()
    while True:
        answer = client.get(f"/sessions/long/transcript{after}")
        sizes.append(len(answer.content))
        page = answer.json()
        messages += page["messages"]
        if "next" not in page:
            break
        after = f"?after={page['next']}"
    assert [one["messageId"] for one in messages if one.get("eligible")] == [f"a{turn}" for turn in range(300)]
    assert [one["seq"] for one in messages] == sorted({one["seq"] for one in messages})
    assert sizes[0] < 64 * 1024
    assert max(sizes) < 256 * 1024
    replaced = [one for one in messages if "replaced" in one]
    assert [one["messageId"] for one in replaced] == ["u0", "a0"]
    assert replaced[0]["replaced"]["byMessageId"] == "summary"
    # A page that is asked for again, or by two, is the same.
    again = [client.get("/sessions/long/transcript").content for _ in range(2)]
    assert again[0] == again[1]
    second = f"/sessions/long/transcript?after={listed(client, '/sessions/long/transcript')['next']}"
    assert client.get(second).content == client.get(second).content
    # One message, whole.
    seq = replaced[1]["seq"]
    assert listed(client, f"/sessions/long/transcript/{seq}")["parts"][0]["text"].startswith("answer 0 xxx")


def test_a_reader_that_takes_nothing_keeps_nothing(
    settings: Settings, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its connection nor its answer, whether the connection was to stay open or to be closed."""
    with LogWriter(Path(settings.sessions), "vast", created_at=CREATED_AT, cwd="/w/two") as log:
        log.append(exchange(1, "q", "x" * 16_000_000, user_id="u", assistant_id="a"))
    seq = listed(client, "/sessions/vast/transcript")["messages"][-1]["seq"]
    monkeypatch.setattr("gateway.protocol.STALLED_S", 0.2)
    caplog.set_level(logging.INFO, "gateway.protocol")
    for connection in ("keep-alive", "close"):
        caplog.clear()
        with socket.socket() as dead:
            dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            dead.connect((client.base_url.host, client.base_url.port))
            headers = f"Host: localhost\r\nConnection: {connection}\r\n\r\n"
            dead.sendall(f"GET /sessions/vast/transcript/{seq} HTTP/1.1\r\n{headers}".encode())
            wait_until(lambda: "stands still" in caplog.text, "it is given up")
            received = 0
            with suppress(ConnectionError):
                while part := dead.recv(1 << 20):
                    received += len(part)
            assert received < 16_000_000


def test_what_cannot_be_shown_is_said(settings: Settings, client: httpx.Client) -> None:
    """A damaged log gives what is before the damage, then its failure; no path of the machine is in any answer."""
    root = Path(settings.sessions)
    path = write_log(root, "broken", conversation(3), of=identity("/w/two"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], b"{broken}\n", *lines[6:]]))
    page = listed(client, "/sessions/broken/transcript")
    assert [one.get("messageId") for one in page["messages"]] == ["u1", "a1"]
    rest = client.get(f"/sessions/broken/transcript?after={page['next']}")
    assert (rest.status_code, rest.json()["code"]) == (500, "LogCorrupt")
    summary = wait_until(lambda: client.get("/sessions/broken").json().get("error"), "the list knows")
    assert summary == {"code": "LogCorrupt", "message": ""}
    assert str(root) not in rest.text
    for path_, status in [
        ("/sessions/nobody", 404),
        ("/sessions/nobody/transcript", 404),
        ("/sessions/praised/transcript/999", 404),
        ("/sessions/praised/transcript?after=-1", 400),
        ("/sessions/praised/transcript/x", 400),
    ]:
        assert client.get(path_).status_code == status, path_
    assert listed(client, f"/sessions/{segment(NASTY)}/transcript")["session"]["cwd"] == "/w/two"


def test_a_directory_that_cannot_be_read_hides_no_other(
    settings: Settings, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list says that it may lack something; no path of the machine is in the answer."""

    def fail(summaries: SessionSummaries) -> None:
        raise LogUnreadable("", settings.sessions, f"Permission denied: '{settings.sessions}/--w--'")

    with monkeypatch.context() as patched:
        patched.setattr(SessionSummaries, "refresh", fail)  # root may read everything
        page = wait_until(lambda: (found := listed(client, "/sessions")).get("incomplete") and found, "it is met")
        assert page["total"] >= 5
        assert settings.sessions not in str(page)
    wait_until(lambda: not listed(client, "/sessions").get("incomplete"), "it can be read again")


def test_what_the_gateway_does_not_see_is_said(settings: Settings, tmp_path: Path) -> None:
    """Without logs there is no list; without a store there is one, that no rating can narrow."""
    with gateway_serving(replace(settings, sessions=str(tmp_path / "none"))) as url, caller(url) as client:
        for path in ("/sessions", "/overview", "/sessions/praised/transcript"):
            assert client.get(path).json()["code"] == "logs-elsewhere"
    unseen = replace(settings, sidecar_url=f"sqlite:///{tmp_path / 'none.sqlite3'}")
    with gateway_serving(unseen) as url, caller(url) as client:
        assert {one["feedback"] for one in listed(client, "/sessions?text=praised")["sessions"]} == {None}
        assert listed(client, "/facets")["feedback"] is False
        for path in ("/sessions?rated=noted", "/overview"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (503, "StoreUnavailable")
        assert not (tmp_path / "none.sqlite3").exists()


def test_whoever_may_read_may_look_and_nobody_else(settings: Settings, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token, _ = TokenFile(tokens).create("reader", (Scope.READ,), now_ms=0)
    paths = ("/sessions", "/facets", "/overview", "/sessions/praised", "/sessions/praised/transcript")
    guarded = replace(settings, gateway_tokens=str(tokens))
    with gateway_serving(guarded) as url, caller(url) as nobody, caller(url, token) as reader:
        assert {nobody.get(path).status_code for path in paths} == {401}
        assert {reader.get(path).status_code for path in paths} == {200}
