"""Parts of measuring that need no server: ports of `feedback up`'s processes, the gateway's requests, liveness."""

from collections.abc import Coroutine

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from app.system import with_own_port
from feedback.settings import Settings
from feedback.vitals import Vitals
from gateway.metrics import GatewayMetrics


def finish(coroutine: Coroutine[None, None, None]) -> None:
    """Run what waits for nothing, without a loop, which would open a socket."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_each_process_of_up_has_a_metrics_port_of_its_own() -> None:
    """Worker, projector and gateway follow each other; 0 stays off."""
    names = ("worker", "projector", "gateway")
    named = Settings(max_note_bytes=1, metrics_port=9100)
    assert [with_own_port(named, name).metrics_port for name in names] == [9100, 9101, 9102]
    off = Settings(max_note_bytes=1)
    assert {with_own_port(off, name).metrics_port for name in names} == {0}


def test_a_gateways_requests_are_counted_by_method_and_status_alone() -> None:
    """Methods that nobody knows are one; a request counts as open until it is over, also when it breaks."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, Vitals())
    open_inside: list[float | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        open_inside.append(registry.get_sample_value("feedback_gateway_open_requests"))
        if scope["path"] == "/breaks":
            raise LookupError
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        del message

    async def ask(method: str, path: str) -> None:
        await metrics.measured(app)({"type": "http", "method": method, "path": path}, receive, send)

    for method in ("GET", "BREW", "X" * 100):
        finish(ask(method, "/sessions/secret"))
    with pytest.raises(LookupError):
        ask("GET", "/breaks").send(None)
    labels = {
        tuple(sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "feedback_gateway_requests_total"
    }
    assert labels == {(("method", "GET"), ("status", "404")): 1, (("method", "other"), ("status", "404")): 2}
    assert open_inside == [1, 1, 1, 1]
    assert registry.get_sample_value("feedback_gateway_open_requests") == 0
    assert registry.get_sample_value("feedback_gateway_request_duration_seconds_count") == 3


def test_a_loop_that_turns_is_alive_and_one_that_never_did_is_starting() -> None:
    vitals = Vitals()
    assert vitals.standing_still(0) == []
    vitals.turn("a")
    assert vitals.standing_still(3600) == []
    assert vitals.standing_still(-1) == ["a"]
