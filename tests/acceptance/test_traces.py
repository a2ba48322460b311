"""Traces of real processes, told to a real collector: one trace from the client to the projected event."""

import subprocess
import sys
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import httpx
import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, keys
from feedback.commands import MAX_TRACEPARENT, command_from_members, digest_of
from feedback.errors import InvalidRequest
from feedback.wire import decode_job, encode_job
from tests.acceptance.command_line import feedback
from tests.collector import Collector, Told, collecting
from tests.harness import settings_for, wait_until, write_session
from tests.integration.gateway_serving import caller, item_path
from tests.integration.rq_jobs import put_command
from tests.ports import free_ports
from tests.processes import child

pytestmark = [pytest.mark.server, pytest.mark.process]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


def one(told: list[Told], service: str, name: str, trace: str) -> Told:
    (found,) = (one for one in told if (one.service, one.span.name, one.trace) == (service, name, trace))
    return found


def arrived(collector: Collector, *services: str) -> bool:
    """Whether each of these told of something."""
    return {told.service for told in collector.told()} >= set(services)


def test_one_trace_leads_from_the_client_to_the_projected_event(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """Sent, processed, projected: one trace, which the batch links. No span tells whose rating it is, or which."""
    (port,) = free_ports(1)
    settings = settings_for(valkey_url, tmp_path, gateway_port=port)
    write_session(settings, "the-session", "the-message", "another-message", "third")
    with collecting() as collector, ExitStack() as running:
        exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        for name in ("worker", "projector", "gateway"):
            process = child(name, settings, tmp_path, exporting)
            running.callback(process.stop, settings.shutdown_grace)
        wait_until(lambda: redis_client.hlen(keys.checkpoint(1)) == settings.partitions, "the streams are followed")
        with FeedbackClient.from_url(valkey_url) as untraced:
            assert untraced.put("the-session", "another-message", "negative").ok
        words = ("put", "the-session", "the-message", "positive", "--note", "the-note", "--actor", "the-actor")
        answer = feedback(*words, env={"FEEDBACK_REDIS_URL": valkey_url} | exporting)
        assert answer.code == 0, answer
        wait_until(
            lambda: arrived(collector, "feedback", "feedback-worker", "feedback-projector"), "all three have told"
        )
        told = collector.told()
        (sent,) = (span for span in told if span.service == "feedback")
        assert (sent.span.name, sent.span.kind) == ("send feedback", sent.span.SPAN_KIND_PRODUCER)
        processed = one(told, "feedback-worker", "process feedback", sent.trace)
        projected = one(told, "feedback-projector", "project feedback", sent.trace)
        for span in (processed.span, projected.span):
            assert (span.parent_span_id, span.kind) == (sent.span.span_id, span.SPAN_KIND_CONSUMER)
        assert processed.attributes["feedback.outcome"] == "put"
        assert processed.attributes["messaging.message.id"] == projected.attributes["messaging.message.id"]
        of_worker = [span for span in told if span.service == "feedback-worker"]
        (batch,) = (one for one in of_worker if one.span.links and one != processed)
        assert [link.trace_id.hex() for link in batch.span.links] == [sent.trace]
        assert [link.span_id for link in processed.span.links] == [batch.span.span_id]
        steps = {span.span.name: span.span for span in told if span.span.parent_span_id == batch.span.span_id}
        assert steps.keys() == {"barrier", "commit", "acknowledge"}
        assert steps["barrier"].end_time_unix_nano <= steps["commit"].start_time_unix_nano
        for secret in (b"the-session", b"the-message", b"the-note", b"the-actor", b"positive", b"negative"):
            assert not any(secret in body for body in collector.bodies)
        assert len(of_worker) == 5, "the untraced one has none"
        with caller(f"http://127.0.0.1:{port}", If_None_Match="*") as client:
            wait_until(lambda: serves(client), "the gateway serves")
            check_gateway(client, collector)


def serves(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.ConnectError:
        return False


def check_gateway(client: httpx.Client, collector: Collector) -> None:
    """A caller over HTTP that has a trace sees its command in it; what is no context is no trace, and no failure."""
    for traceparent, status in (
        ("garbage", HTTPStatus.CREATED),
        (f"00-{TRACE}-{CALLER}-01", HTTPStatus.PRECONDITION_FAILED),
    ):
        path = item_path("the-session", "third")
        answer = client.put(path, json={"rating": "positive"}, headers={"traceparent": traceparent})
        assert answer.status_code == status, answer.text
    gateways = ("feedback-gateway", TRACE)
    wait_until(lambda: any((told.service, told.trace) == gateways for told in collector.told()), "the gateway has told")
    sent = one(collector.told(), "feedback-gateway", "send feedback", TRACE)
    assert sent.span.parent_span_id.hex() == CALLER


def test_a_collector_that_is_dead_keeps_nobody_from_working_or_ending(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """Commands are answered, and the worker ends in order; what cannot be exported this way is said at the start."""
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", "m")
    dead = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    worker = child("worker", settings, tmp_path, dead)
    try:
        with FeedbackClient.from_url(valkey_url) as client:
            assert client.put("s", "m", "positive").ok
        env = {"FEEDBACK_REDIS_URL": valkey_url}
        answer = feedback("put", "s", "m", "negative", "--json", env=env | dead)
        assert (answer.document["ok"], answer.err) == (False, ""), "a conflict, and not a word of the exporter's"
    finally:
        assert worker.stop(settings.shutdown_grace), worker.log_tail()
    grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    refused = feedback("put", "s", "m", "positive", env=env | dead | grpc)
    assert refused.code == 2
    assert "SettingsInvalid: OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc'" in refused.err


def test_the_context_is_no_part_of_what_a_command_is(tmp_path: Path) -> None:
    """Optional on the wire, absent without a trace, bounded, not in the digest; garbage is no trace and no failure."""
    plain = put_command("s", "m")
    traced = msgspec.structs.replace(plain, traceparent=f"00-{TRACE}-{CALLER}-01")
    assert decode_job(encode_job(traced)) == traced
    assert digest_of(traced) == digest_of(plain)
    assert b"traceparent" not in encode_job(plain)
    members = msgspec.to_builtins(plain)
    assert command_from_members(members | {"traceparent": "garbage\n"}).traceparent == "garbage\n"
    with pytest.raises(InvalidRequest, match="traceparent"):
        command_from_members(members | {"traceparent": "0" * (MAX_TRACEPARENT + 1)})
    code = """
from feedback import tracing
import app.cli.worker, app.cli.projector, app.cli.ratings, sys
with tracing.sending(1) as traceparent:
    assert traceparent is None
assert not [name for name in sys.modules if name.startswith(("opentelemetry.exporter", "prometheus_client"))]
import opentelemetry.trace
assert not tracing.is_on()
assert tracing.context_of("garbage\\n") is None
assert tracing.context_of(None) is None
with tracing.sending(1) as traceparent:
    assert traceparent is None, "nobody has set OpenTelemetry up"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
