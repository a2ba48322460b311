"""A gateway of the real code on a real port, as a thread of the test's process, and clients for it."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from feedback.calls import wall_clock_ms
from feedback.settings import Settings
from gateway.server import run_gateway

PATIENCE_S = 30.0


@contextmanager
def gateway_serving(settings: Settings, *, clock_ms: Callable[[], int] = wall_clock_ms) -> Iterator[str]:
    """Its URL, until the block ends; what it raised is raised then."""
    stop, urls = threading.Event(), queue.SimpleQueue[str]()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_gateway, settings, stop, urls.put, clock_ms=clock_ms)
        running.add_done_callback(lambda _: urls.put(""))
        try:
            url = urls.get(timeout=PATIENCE_S)
            if url:
                yield url
        finally:
            stop.set()
    running.result()


@contextmanager
def caller(url: str, token: str | None = None, **headers: str) -> Iterator[httpx.Client]:
    """A client that says who it is, if it is told; `headers` with underscores for dashes."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    with httpx.Client(base_url=url, headers=given, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="").replace(".", "%2E")


def item_path(session_id: str, message_id: str) -> str:
    return f"/sessions/{segment(session_id)}/feedback/{segment(message_id)}"


def remote(client: httpx.Client, verb: str, request: object, rpc_id: str | int = "rpc-1") -> Any:
    """The `result` of one call of the remote contract, whose envelope must be to the letter."""
    method = f"messageFeedback/{verb}"
    body = {"type": "client-request", "rpcId": rpc_id, "method": method, "payload": {"args": {"request": request}}}
    # As JavaScript writes it: what is no Unicode goes as an escape.
    answer = client.post(f"/api/{method}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document.keys() == {"type", "rpcId", "result"}
    assert (document["type"], document["rpcId"]) == ("server-response", rpc_id)
    return document["result"]


class Sent(NamedTuple):
    """One server-sent event; of a mark alone, `name` is empty and `data` None."""

    id: str | None
    name: str
    data: Any


@contextmanager
def listening(client: httpx.Client, path: str, last_event_id: str | None = None) -> Iterator[Iterator[Sent]]:
    """The events of a stream, as they come, without its comments."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with client.stream("GET", path, headers=headers) as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Sent]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            if fields.keys() & {"id", "event", "data"}:
                data = json.loads(fields["data"]) if "data" in fields else None
                yield Sent(fields.get("id"), fields.get("event", ""), data)
            fields = {}
