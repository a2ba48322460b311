"""The gateway's two forms of the contract, on a real server: the original's envelope, and feedback as resources."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from feedback import FeedbackClient, keys
from feedback.connection import connect
from feedback.settings import Settings
from gateway.protocol import MOST_HEADER_BYTES, BoundedProtocol
from gateway.reading.library import Facets, Library
from gateway.reading.threads import MOST_READINGS
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.gateway_serving import PATIENCE_S, caller, gateway_serving, item_path, remote, segment

pytestmark = pytest.mark.server

ODD = "a/b ?#%+ü🚀\0"
ENVELOPE = {"type": "client-request", "rpcId": "1", "method": "messageFeedback/list"}
LIST = {"args": {"request": {"sessionId": "s"}}}
NEW = {"If-None-Match": "*"}


@pytest.fixture(scope="module")
def settings(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A serving system, for all tests here; each uses messages of its own."""
    with connect(valkey_url) as redis:
        redis.flushall()
    settings = settings_for(valkey_url, tmp_path_factory.mktemp("home"), gateway_port=0)
    write_session(settings, "s", *(f"m{number}" for number in range(20)))
    write_session(settings, ODD, ODD)
    with serving(settings):
        yield settings


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    with gateway_serving(settings) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with caller(url) as client:
        yield client


def raw(url: str, request: bytes, more: bytes = b"") -> bytes:
    """What a server answers to bytes that no client would send, and `more` after its answer began, until it ends
    the connection."""
    address, answer = httpx.URL(url), b""
    with socket.create_connection((address.host, address.port or 80)) as connection, suppress(ConnectionError):
        connection.sendall(request)
        if more:
            answer += connection.recv(1 << 16)
            connection.sendall(more)
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def test_the_remote_contract_answers_in_the_originals_envelope(client: httpx.Client, settings: Settings) -> None:
    """Business errors are values; what fails the boundary check is `internal`, with exactly its members."""
    put = {"sessionId": "s", "messageId": "m0", "rating": "positive", "note": "n", "ifVersion": None}
    first = remote(client, "put", put, rpc_id=7)
    item = first["value"]["value"]
    assert first == {"ok": True, "value": {"ok": True, "value": item}}
    assert list(item) == ["messageId", "rating", "note", "version", "createdAt", "updatedAt"]
    assert remote(client, "put", put) == {
        "ok": True,
        "value": {"ok": False, "error": {"code": "version-conflict", "current": item}},
    }
    assert item in remote(client, "list", {"sessionId": "s"})["value"]["value"]["items"]
    gone = remote(client, "delete", {"sessionId": "s", "messageId": "m0", "ifVersion": item["version"]})
    assert gone == {"ok": True, "value": {"ok": True, "value": {"absent": True}}}
    for verb, malformed in (
        ("put", {"sessionId": "s"}),
        ("put", put | {"extra": 1}),
        ("put", put | {"note": None}),
        ("put", put | {"actor": "mallory"}),
        ("delete", {"sessionId": "s", "messageId": "m0"}),
        ("list", {"sessionId": 1}),
    ):
        failed = remote(client, verb, malformed)
        assert failed.keys() == {"ok", "error"}
        assert failed["ok"] is False
        assert failed["error"].keys() == {"code", "message", "details"}
        assert (failed["error"]["code"], failed["error"]["details"]) == ("internal", {})
        assert failed["error"]["message"].startswith("InvalidRequest: ")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (json.dumps(ENVELOPE | {"rpcId": None, "payload": LIST}).encode(), 400),
        (json.dumps(ENVELOPE | {"rpcId": True, "payload": LIST}).encode(), 400),
        (json.dumps(ENVELOPE | {"rpcId": 1.5, "payload": LIST}).encode(), 400),
        (json.dumps(ENVELOPE | {"rpcId": "\ud800", "payload": LIST}).encode(), 400),
        (b'{"rpcId":"1","rpcId":"2"}', 400),
        (json.dumps(ENVELOPE | {"payload": LIST}).encode(), None),
        (json.dumps(ENVELOPE).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": LIST, "type": "server-request"}).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": LIST, "method": "messageFeedback/put"}).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": LIST, "more": 1}).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": {"args": {"request": []}}}).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": {"args": {"request": {"sessionId": "\ud800"}}}}).encode(), 200),
        (b'{"type":"client-request","rpcId":"1","method":"messageFeedback/list","payload":{},"payload":{}}', 200),
        (
            json.dumps(ENVELOPE | {"payload": {"args": {"request": {"sessionId": "s", "x": float("nan")}}}}).encode(),
            200,
        ),
        (json.dumps(ENVELOPE | {"payload": LIST, "x\ud800": 1}).encode(), 200),
        (json.dumps(ENVELOPE | {"payload": LIST | {"x\ud800": 1}}).encode(), 200),
        (b" " * 200_000, 413),
    ],
)
def test_an_envelope_that_is_malformed(client: httpx.Client, body: bytes, status: int | None) -> None:
    """With an id, it is answered in the contract's form; without one, there is nobody to answer: a problem document."""
    answer = client.post("/api/messageFeedback/list", content=body)
    if status in (None, 200):
        assert answer.status_code == 200
        document = answer.json()
        assert (document["type"], document["rpcId"]) == ("server-response", "1")
        assert document["result"]["ok"] is (status is None)
    else:
        assert answer.status_code == status
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_feedback_as_a_resource(client: httpx.Client) -> None:
    """Created, read, replaced and removed, each step under the version of the one before."""
    path = item_path("s", "m1")
    assert client.get(path).json()["code"] == "feedback-not-found"
    created = client.put(path, json={"rating": "positive", "note": "why"}, headers=NEW)
    item = created.json()
    assert (created.status_code, created.headers["ETag"]) == (201, f'"{item["version"]}"')
    read = client.get(path)
    assert (read.status_code, read.json(), read.headers["ETag"]) == (200, item, created.headers["ETag"])
    assert client.get(path, headers={"If-None-Match": created.headers["ETag"]}).status_code == 304
    assert client.head(path).headers["ETag"] == created.headers["ETag"]

    replaced = client.put(path, json={"rating": "negative"}, headers={"If-Match": created.headers["ETag"]})
    assert (replaced.status_code, replaced.json()["rating"]) == (200, "negative")
    assert "note" not in replaced.json()
    revision = int(replaced.headers["Feedback-Revision"])
    assert revision == int(created.headers["Feedback-Revision"]) + 1
    listed = client.get("/sessions/s/feedback", params={"atLeast": revision})
    assert replaced.json() in listed.json()["items"]

    for stale in (client.put(path, json={"rating": "positive"}, headers=NEW), client.delete(path, headers=NEW)):
        assert (stale.status_code, stale.json()["code"]) == (412, "version-conflict")
        assert stale.json()["current"] == replaced.json()
        assert stale.headers["ETag"] == replaced.headers["ETag"]
    removed = client.delete(path, headers={"If-Match": replaced.headers["ETag"]})
    assert (removed.status_code, removed.content) == (204, b"")
    assert client.delete(path, headers={"If-Match": '"whatever"'}).status_code == 204, "there is none: success"


def test_every_business_error_is_a_problem_document(client: httpx.Client, settings: Settings) -> None:
    """With the contract's code and members, and the status that says most of it to HTTP."""
    good = {"rating": "positive"}
    for path, body, status, members in (
        (item_path("s", "m2"), {"rating": "positive", "note": " \ufeff"}, 422, {"code": "note-blank"}),
        (
            item_path("s", "m2"),
            {"rating": "positive", "note": "x" * 8193},
            413,
            {"code": "note-too-large", "maxBytes": 8192, "actualBytes": 8193},
        ),
        (item_path("nobody", "m2"), good, 404, {"code": "session-not-found", "sessionId": "nobody"}),
        (item_path("", ""), good, 404, {"code": "session-not-found", "sessionId": ""}),
        (item_path("s", "x"), good, 404, {"code": "target-not-found", "sessionId": "s", "messageId": "x"}),
        (item_path("s", "u1"), good, 404, {"code": "target-not-found", "sessionId": "s", "messageId": "u1"}),
        (item_path("s", "m2"), {"rating": "meh"}, 400, {"code": "InvalidRequest", "path": "$.rating"}),
        (item_path("s", "m2"), {"rating": "positive", "ifVersion": None}, 400, {"code": "InvalidRequest"}),
        (item_path("s", "m2"), {"rating": "positive", "actor": "mallory"}, 400, {"code": "InvalidRequest"}),
        (item_path("s", "m2"), {"rating": "positive", "note": "\ud800"}, 400, {"path": "$.note"}),
    ):
        answer = client.put(path, content=json.dumps(body), headers=NEW)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json().items() >= members.items()
        assert answer.json().keys() >= {"type", "title", "status", "detail"}
    assert client.put(item_path("s", "m2"), json=good).status_code == 428
    assert client.delete(item_path("s", "m2")).status_code == 428
    assert client.get("/sessions/nobody/feedback").status_code == 404
    assert client.get("/sessions/s/feedback?atLeast=-1").status_code == 400
    typed = client.put(item_path("s", "m2"), content=b"{}", headers=NEW | {"Content-Type": "text/plain"})
    assert typed.status_code == 415
    other = client.patch(item_path("s", "m2"))
    assert (other.status_code, other.json()["code"]) == (405, "method-not-allowed")
    assert set(other.headers["Allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}
    assert client.get("/nowhere").json()["code"] == "not-found"


def test_ids_are_any_unicode(client: httpx.Client) -> None:
    """Slashes, question marks, NUL and emoji come through a path, whatever is decoded on the way."""
    path = item_path(ODD, ODD)
    created = client.put(path, json={"rating": "positive"}, headers=NEW)
    assert created.status_code == 201, created.text
    assert created.json()["messageId"] == ODD
    assert client.get(path).json() == created.json()
    assert client.get(f"/sessions/{segment(ODD)}/feedback").json() == {"items": [created.json()]}
    for broken in ("%ff", "%", "%zz", "%ED%A0%80"):
        assert client.get(f"/sessions/{broken}/feedback").status_code == 400


def test_the_same_key_is_one_effect_and_one_answer(client: httpx.Client, settings: Settings) -> None:
    """Sent again it is answered alike, long after the item has changed; with another payload it is refused."""
    path, key = item_path("s", "m3"), str(uuid4())
    first = client.put(path, json={"rating": "positive"}, headers=NEW | {"Idempotency-Key": key})
    changed = client.put(path, json={"rating": "negative"}, headers={"If-Match": first.headers["ETag"]})
    assert changed.status_code == 200
    again = client.put(path, json={"rating": "positive"}, headers=NEW | {"Idempotency-Key": f'"{key}"'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (201, first.content, first.headers["ETag"])
    other = client.put(path, json={"rating": "negative"}, headers=NEW | {"Idempotency-Key": key})
    assert (other.status_code, other.json()["code"]) == (422, "CommandIdReused")
    with FeedbackClient.from_url(settings.redis_url) as direct:
        assert direct.result_of(key).ok


def test_answers_carry_the_headers_that_protect_a_browser(client: httpx.Client) -> None:
    for path in ("/healthz", "/sessions/s/feedback", "/nowhere"):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers


def test_the_page_is_served_with_a_policy_of_its_own(client: httpx.Client) -> None:
    """Its files and no others, for everybody; nothing from elsewhere may run in it."""
    index = client.get("/")
    assert (index.status_code, index.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'self'" in index.headers["Content-Security-Policy"]
    for linked in re.findall(r'(?:src|href)="(/page/[^"]+)"', index.text):
        assert client.get(linked).status_code == 200
        assert "default-src 'none'" in client.get(linked).headers["Content-Security-Policy"]
    for outside in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/none", "/page/"):
        assert raw(str(client.base_url), f"GET {outside} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())[9:12] == b"404"


def test_bytes_that_are_no_http_are_refused(url: str) -> None:
    """Headers without end, a path that is not ASCII, a body that is longer than it may be: an answer, and the end."""
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    # A server that ends a connection with bytes unread may take its last words with it.
    assert raw(url, start + b"A: " + b"a" * (8 * MOST_HEADER_BYTES))[:12] in (b"HTTP/1.1 400", b"")
    assert raw(url, "GET /ü HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).startswith(b"HTTP/1.1 400")
    post = b"POST /api/messageFeedback/list HTTP/1.1\r\nHost: localhost\r\n"
    assert raw(url, post + b"Content-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert raw(url, post + b"Transfer-Encoding: chunked\r\n\r\n" + 3 * chunk).startswith(b"HTTP/1.1 413")


def test_what_is_held_is_bounded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests under way, readers of events, and the patience for headers that do not come."""
    monkeypatch.setattr("gateway.context.MOST_LISTENERS", 0)
    monkeypatch.setattr("gateway.guard.MOST_AT_ONCE", 1)
    with gateway_serving(settings) as url, caller(url) as client, ExitStack() as stack:
        with monkeypatch.context() as impatient:
            impatient.setattr("gateway.protocol.HEADERS_WITHIN_S", 0.1)
            assert raw(url, b"GET /healthz HTTP/1.1\r\nHost: loc") == b""
        full = client.get("/events")
        address = httpx.URL(url)
        under_way = stack.enter_context(socket.create_connection((address.host, address.port or 80)))
        post = b"POST /api/messageFeedback/list HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        under_way.sendall(post + b"Expect: 100-continue\r\n\r\n")
        assert under_way.recv(1000).startswith(b"HTTP/1.1 100"), "a body is awaited"
        for answer in (full, client.get("/sessions/s/feedback"), client.post("/api/messageFeedback/list")):
            assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "busy", "1")
        under_way.close()
        wait_until(lambda: client.get("/sessions/s/feedback").status_code == 200, "its place is free")


def test_slow_readings_hold_up_no_rating(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page reads has threads of its own, and so many places; past them it is told to come back."""
    may_end, facets = threading.Event(), Library.facets

    def slow(library: Library) -> Facets:
        assert may_end.wait(PATIENCE_S)
        return facets(library)

    monkeypatch.setattr(Library, "facets", slow)
    with ThreadPoolExecutor(MOST_READINGS + 1) as callers:
        asked = [callers.submit(client.get, "/facets") for _ in range(MOST_READINGS + 1)]
        try:
            full = next(as_completed(asked)).result()
            assert (full.status_code, full.json()["code"], full.headers["Retry-After"]) == (503, "busy", "1")
            assert client.put(item_path("s", "m19"), json={"rating": "positive"}, headers=NEW).status_code == 201
            assert client.get("/sessions/s/feedback").status_code == 200
        finally:
            may_end.set()
        assert sorted(one.result().status_code for one in asked) == [200] * MOST_READINGS + [503]


def test_who_was_answered_holds_neither_memory_nor_the_connection(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trailers are not kept; an unread body, or bytes that begin no request, keep a connection open for no longer."""
    protocols: list[BoundedProtocol] = []

    def note(protocol: BoundedProtocol, name: bytes, value: bytes) -> None:
        protocols.append(protocol)
        on_header(protocol, name, value)

    on_header = BoundedProtocol.on_header
    monkeypatch.setattr(BoundedProtocol, "on_header", note)
    monkeypatch.setattr("gateway.protocol.HEADERS_WITHIN_S", 1.0)
    post = b"POST /api/messageFeedback/list HTTP/1.1\r\nHost: localhost\r\n"
    with gateway_serving(settings) as url:
        trailers = b"".join(b"T%d: %s\r\n" % (number, b"t" * 1000) for number in range(200))
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
        assert raw(url, chunked, b"\r\n").startswith(b"HTTP/1.1 400")
        assert len(protocols) > 200
        assert {name for name, _ in protocols[0].headers} == {b"host", b"transfer-encoding"}
        assert raw(url, post + b"Content-Length: 99999999\r\n\r\n", b" ").startswith(b"HTTP/1.1 413")
        assert raw(url, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n").startswith(b"HTTP/1.1 200")


def test_without_a_worker_it_is_alive_and_not_ready_and_says_when_to_come_back(
    settings: Settings, tmp_path: Path
) -> None:
    """Each failure of the system is 503 with `Retry-After`; the remote contract says `internal`."""
    nowhere = settings_for("redis://127.0.0.1:1/0", tmp_path, gateway_port=0, gateway_timeout=0.2)
    with gateway_serving(nowhere) as url, caller(url) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        for answer in (
            client.get("/readyz"),
            client.get("/sessions/s/feedback"),
            client.put(item_path("s", "m"), json={"rating": "positive"}, headers=NEW),
        ):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "127.0.0.1" not in answer.text
        late = b"POST /api/messageFeedback/list HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        assert raw(url, late).startswith(b"HTTP/1.1 408")
        failed: Any = remote(client, "list", {"sessionId": "s"})
        assert failed["error"]["message"].startswith("QueueUnavailable: ")
    with gateway_serving(settings) as url, caller(url) as client:
        wait_until(lambda: client.get("/readyz").json() == {"status": "ok"}, "a worker has set the server up")


def test_a_command_whose_answer_does_not_come_names_its_id(valkey_url: str, tmp_path: Path) -> None:
    """So that the caller can send it again by that key, and get the one answer."""
    with connect(valkey_url.removesuffix("/0") + "/1") as redis:
        redis.flushdb()
        redis.hset(keys.TOPOLOGY, mapping={"generation": 1, "partitions": 1, "max_note_bytes": 100})
        settings = settings_for(valkey_url.removesuffix("/0") + "/1", tmp_path, gateway_port=0, gateway_timeout=0.2)
        with gateway_serving(settings) as url, caller(url) as client:
            late = client.put(item_path("s", "m"), json={"rating": "positive"}, headers=NEW)
        assert (late.status_code, late.json()["code"], late.headers["Retry-After"]) == (503, "ResultTimeout", "1")
        assert redis.exists(keys.job(late.json()["commandId"]))
        redis.flushdb()
