"""Metrics of real workers, projectors and agents, scraped over HTTP as Prometheus does."""

import json
import re
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from unittest.mock import patch

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry
from redis import Redis
from redis.connection import Connection

from app.metrics.exposing import Exposition, exposed
from barrier.metrics import AgentMetrics
from feedback import FeedbackClient, Item, Ok, Put, keys
from feedback.errors import CommandExpired, SettingsInvalid
from feedback.evidence import EvidenceRequest, encode_request
from feedback.queries import ListQuery, encode_query
from feedback.settings import Settings
from feedback.vitals import Vitals
from gateway.metrics import GatewayMetrics
from persistence.sidecar import open_store
from tests.harness import HOST, elsewhere, here, serving, settings_for, wait_until, write_session
from tests.integration.measured import Measured, page, projecting, scrape, working
from tests.integration.rq_jobs import partition_of, put_command, request_of, set_up
from tests.promql import grouping_labels, metrics_of
from worker.claims import Claimed
from worker.meter import Meter
from worker.process import run_worker

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/session-feedback.json"


@pytest.fixture
def settings(redis_client: Redis, valkey_url: str, tmp_path: Path) -> Settings:
    return settings_for(valkey_url, tmp_path)


@pytest.fixture
def measured(redis_client: Redis, settings: Settings) -> Iterator[Measured]:
    """All partitions owned and followed."""
    write_session(settings, "s", "m1", "m2")
    with working(here(settings)) as running:
        wait_until(lambda: redis_client.hlen(keys.checkpoint(1)) == settings.partitions, "the streams are followed")
        wait_until(
            lambda: scrape(running.worker)("feedback_worker_partitions_acquired_total") == settings.partitions, "owned"
        )
        yield running


def test_each_command_is_counted_once_by_what_became_of_it(settings: Settings, measured: Measured) -> None:
    """Put, unchanged, conflict, rejected, deleted, expired; and batches, barriers, commits, lookups of lists."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        first = client.put("s", "m1", "positive")
        assert isinstance(first, Ok)
        assert isinstance(first.value, Item)
        version = first.value.version
        assert client.put("s", "m1", "positive", if_version=version).ok
        assert not client.put("s", "m1", "negative").ok
        assert not client.put("nobody", "m1", "positive").ok
        assert client.delete("s", "m1", if_version=version).ok
        with pytest.raises(CommandExpired):
            client.put("s", "m2", "positive", expires_at=1)
        for _ in range(2):
            assert client.list("s").ok
    told = scrape(measured.worker)
    outcomes = {
        outcome: told("feedback_worker_commands_total", outcome=outcome)
        for outcome in ("put", "unchanged", "conflict", "rejected", "deleted", "expired", "failed", "gone")
    }
    assert outcomes == {
        "put": 1,
        "unchanged": 1,
        "conflict": 1,
        "rejected": 1,
        "deleted": 1,
        "expired": 1,
        "failed": 0,
        "gone": 0,
    }
    assert told("feedback_worker_dead_letters_total", code="CommandExpired") == 1
    assert told("feedback_worker_batch_commands_sum") == 6
    for part in ("barrier", "commit"):
        assert told(f"feedback_worker_{part}_duration_seconds_count") == told("feedback_worker_batch_commands_count")
        assert told(f"feedback_worker_{part}_duration_seconds_sum") > 0
    assert told("feedback_worker_owned_partitions") == told("feedback_worker_partitions_acquired_total") == 4
    lists = scrape(measured.projector)
    # Whoever gets no answer for a while asks again.
    assert lists("feedback_projector_queries_total") >= 2
    assert sum(lists("feedback_projector_list_lookups_total", source=source) for source in ("cache", "store")) >= 1
    assert lists("feedback_projector_list_lookups_total", source="memory") >= 1
    wait_until(lambda: scrape(measured.projector)("feedback_projector_outcomes_total") == 5, "all are projected")
    assert scrape(measured.projector)("feedback_projection_lag_outcomes") == 0
    assert scrape(measured.projector)("feedback_projector_following") == 1


def test_series_do_not_grow_with_sessions_and_no_label_names_one(settings: Settings, measured: Measured) -> None:
    """A run over many Sessions, messages, actors and notes leaves as many series as a run over one."""

    def rate(names: list[str]) -> None:
        for name in names:
            write_session(settings, name, f"message-of-{name}")
        requests = [
            Put(name, f"message-of-{name}", "positive", note="secret words", actor=f"actor-of-{name}") for name in names
        ]
        with FeedbackClient.from_url(settings.redis_url) as client:
            assert all(ticket.result(timeout=60).ok for ticket in client.submit_many(requests))
            for name in names[:5]:
                assert client.list(name).ok

    def series() -> list[set[tuple[str, tuple[tuple[str, str], ...]]]]:
        return [set(scrape(process).samples) for process in (measured.worker, measured.projector)]

    rate(["one-session"])
    before = series()
    rate([f"session-{number}" for number in range(60)])
    assert series() == before
    text = page(measured.worker, "/metrics")[1] + page(measured.projector, "/metrics")[1]
    for secret in ("session-", "message-of", "actor-of", "secret", "positive", settings.sessions):
        assert secret not in text


def test_the_queue_is_told_right_when_no_worker_lives(redis_client: Redis, settings: Settings) -> None:
    """Lengths, the age of the oldest command, owners: from Redis at the scrape; a projector is enough."""
    set_up(redis_client, settings)
    commands = [put_command(f"session-{number}", "m") for number in range(9)]
    with FeedbackClient.from_url(settings.redis_url) as client, projecting(settings) as projector:
        assert scrape(projector)("feedback_queue_oldest_command_age_seconds") == 0
        client.submit_many(map(request_of, commands))
        hour_ago = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        redis_client.hset(keys.job(commands[0].command_id), "enqueued_at", hour_ago)
        told = scrape(projector)
        assert told("feedback_queue_commands", state="waiting") == 9
        assert told("feedback_queue_commands", state="claimed") == 0
        assert told("feedback_partitions", owned="no") == settings.partitions
        assert told("feedback_workers_alive") == 0
        assert told("feedback_system_readable", part="server") == told("feedback_system_readable", part="store") == 1
        assert 3600 <= told("feedback_queue_oldest_command_age_seconds") < 3700
        with serving(settings, projector=False):
            wait_until(lambda: scrape(projector)("feedback_queue_commands", state="waiting") == 0, "it is worked off")
            told = scrape(projector)
            assert told("feedback_workers_alive") == 1
            assert told("feedback_partitions", owned="yes") == settings.partitions


def test_a_scrape_costs_the_server_five_round_trips(redis_client: Redis, settings: Settings) -> None:
    """However many metrics it has: topology and workers, owners, troubles, queues, the projection's checkpoints."""
    set_up(redis_client, settings)
    redis_client.sadd(keys.WORKERS, "w")
    send = Connection.send_packed_command
    with closing(Exposition(settings, "projector", has_store=True, has_system=True)) as exposition:
        exposition.metrics("")
        with patch.object(Connection, "send_packed_command", autospec=True, side_effect=send) as noted:
            assert 'feedback_system_readable{part="store"} 1.0' in exposition.metrics("").body.decode()
    assert noted.call_count == 5


def test_fences_lease_changes_and_troubles_are_counted(
    redis_client: Redis, settings: Settings, measured: Measured
) -> None:
    """Somebody takes a partition in the store: the next commit is fenced off, and the partition is taken over anew."""
    partition = partition_of(settings, "s")
    with closing(open_store(settings.sidecar_url)) as store, FeedbackClient.from_url(settings.redis_url) as client:
        assert client.put("s", "m1", "positive").ok
        store.acquire_fences([partition], "somebody")
        assert client.put("s", "m2", "positive").ok
    told = scrape(measured.worker)
    assert told("feedback_worker_fenced_total") == 1
    assert told("feedback_worker_partitions_acquired_total") == settings.partitions + 1
    assert told("feedback_worker_partitions_given_up_total") == 1


def test_parked_sessions_retries_and_questions(settings: Settings, redis_client: Redis, tmp_path: Path) -> None:
    """A Session whose host has no agent waits, parked; its tries are counted by why; an agent counts its looks."""
    patient = msgspec.structs.replace(elsewhere(settings).settings, agent_timeout=0.2, max_attempts=1000)
    placed = elsewhere(settings)._replace(settings=patient)
    write_session(settings, "s", "m")
    with working(placed) as measured, FeedbackClient.from_url(settings.redis_url, host="box-9") as lost:
        lost.submit_many([Put("elsewhere", "m", "positive"), Put("elsewhere", "n", "positive")])
        wait_until(
            lambda: (
                scrape(measured.worker).samples.get(
                    ("feedback_worker_retries_total", (("code", "AgentUnanswered"),)), 0
                )
                > 1
            ),
            "it is tried again",
        )
        told = scrape(measured.worker)
        assert told("feedback_worker_parked_sessions") == 1
        assert told("feedback_worker_parked_commands") == 2
        assert told("feedback_worker_questions_total", asked="agent") > 0
        with FeedbackClient.from_url(settings.redis_url, host=placed.host) as client:
            assert client.put("s", "m", "positive").ok
        assert measured.agent is not None
        seen = scrape(measured.agent)
        assert seen("feedback_agent_serving") == 1
        assert seen("feedback_agent_sessions_total") == seen("feedback_agent_barrier_duration_seconds_count") >= 1
        assert page(measured.agent, "/readyz") == (200, "ok\n")


def test_what_is_not_answered_is_counted_by_why(settings: Settings, redis_client: Redis) -> None:
    """By an agent or a projector: nobody waits for it any more, it is another host's, or it cannot be read."""
    request = EvidenceRequest(request_id="r", reply_to="me", host=HOST, deadline=1, sessions=())
    foreign = msgspec.structs.replace(request, host="another")
    documents = [encode_request(request), encode_request(request), encode_request(foreign), b"\xc1"]
    with working(elsewhere(settings)) as measured:
        agent = measured.agent
        assert agent is not None
        assert scrape(agent)("feedback_agent_dropped_total", reason="overdue") == 0
        redis_client.rpush(keys.agent_requests(HOST), *documents)
        wait_until(lambda: scrape(agent)("feedback_agent_dropped_total", reason="malformed") == 1, "all were read")
        told = scrape(agent)
        counts = [told("feedback_agent_dropped_total", reason=reason) for reason in ("overdue", "foreign", "crowded")]
        assert counts == [2, 1, 0]
        query = encode_query(ListQuery(query_id="q", deadline=1, session_id="s"))
        redis_client.rpush(keys.QUERIES, query, query, b"\xc1")
        projector = measured.projector
        wait_until(lambda: scrape(projector)("feedback_projector_dropped_total", reason="malformed") == 1, "all were")
        assert scrape(projector)("feedback_projector_dropped_total", reason="overdue") == 2


def test_a_scrape_ends_when_the_server_is_silent_and_health_says_what_is_wrong(
    redis_client: Redis, settings: Settings, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read is left out and said; liveness is about the loops alone, readiness about what they need."""
    for process in (measured.worker, measured.projector):
        assert page(process, "/healthz") == page(process, "/readyz") == (200, "ok\n")
        assert page(process, "/other")[0] == 404
    redis_client.execute_command("CLIENT", "PAUSE", 2500, "ALL")
    told = scrape(measured.projector)
    assert told("feedback_system_readable", part="server") == 0
    assert "feedback_queue_commands" not in told.names
    assert told("feedback_projector_queries_total") == 0
    assert page(measured.worker, "/readyz") == (503, "server: TimeoutError\n")
    assert page(measured.worker, "/healthz")[0] == 200
    monkeypatch.setattr(measured.worker.vitals, "turn", lambda loop: None)
    monkeypatch.setattr("app.metrics.exposing.ALIVE_WITHIN_S", 0.0)
    assert page(measured.worker, "/healthz") == (503, "worker stands still\n")
    redis_client.ping()  # the pause is over


def test_probes_that_wait_for_a_silent_store_leave_room_for_the_one_about_life(settings: Settings) -> None:
    """However many of them come: a process that stands in a long line is not one that stands still."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(20) as probes:
        silent_url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/feedback?sslmode=disable"
        with exposed(msgspec.structs.replace(settings, sidecar_url=silent_url), "worker") as exposition:
            first = probes.submit(page, exposition, "/readyz")
            accepted, _ = silent.accept()
            for _ in range(3):
                waiting = [probes.submit(page, exposition, "/readyz") for _ in range(6)]
                assert page(exposition, "/healthz") == (200, "ok\n")
                assert {one.result() for one in waiting} == {
                    (503, "an earlier look at the server and the store takes long\n")
                }
            accepted.close()
            assert first.result() == (503, "store: StoreUnavailable\n")


def test_a_port_that_is_taken_is_said_at_the_start(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        named = msgspec.structs.replace(settings, metrics_port=port)
        with pytest.raises(SettingsInvalid, match=rf"metrics_host, metrics_port: 127\.0\.0\.1:{port}: Address already"):
            exposed(named, "worker").__enter__()


class Counting(Meter):
    """Notes what a worker tells of its batches."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def processed(self, ended: object, deferred: object) -> None:
        self.calls.append("processed")

    def acknowledged(self, claims: Sequence[Claimed]) -> None:
        assert claims
        self.calls.append("acknowledged")

    def fenced(self) -> None:
        self.calls.append("fenced")

    def interrupted(self, error: Exception) -> None:
        self.calls.append("interrupted")


def test_what_is_told_grows_with_batches_and_not_with_commands(settings: Settings, redis_client: Redis) -> None:
    """Two calls for a lone put, and no more for a batch of many."""
    names = [f"m{number}" for number in range(64)]
    write_session(settings, "s", *names)
    meter, stop = Counting(), Event()
    with ThreadPoolExecutor(1) as threads, FeedbackClient.from_url(settings.redis_url) as client:
        running = threads.submit(run_worker, settings, stop, meter=meter)
        try:
            assert client.put("s", "m0", "positive").ok
            wait_until(lambda: len(meter.calls) == 2, "it is told")
            assert meter.calls == ["processed", "acknowledged"]
            tickets = client.submit_many(Put("s", name, "negative") for name in names[1:])
            assert all(ticket.result(30).ok for ticket in tickets)
            wait_until(lambda: len(meter.calls) % 2 == 0, "all is told")
            assert len(meter.calls) <= 6
        finally:
            stop.set()
        running.result()


def everything(measured: Measured) -> dict[str, set[str]]:
    """What processes of all kinds expose now: labels by name of the series."""
    more = CollectorRegistry()
    AgentMetrics(more, Vitals())
    gateway = GatewayMetrics(more, Vitals())
    gateway.count("GET", 200, 0.1)
    series: dict[str, set[str]] = {}
    for name, labels in (*scrape(measured.worker).samples, *scrape(measured.projector).samples):
        series.setdefault(name, set()).update(label for label, _ in labels)
    for family in more.collect():
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def test_alerts_and_dashboard_are_about_metrics_that_there_are(settings: Settings, measured: Measured) -> None:
    """Each name and label in each expression; each alert has its row in operations; each metric is documented, and on
    the dashboard or in an alert."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        assert client.put("s", "m1", "positive").ok
    series = everything(measured)
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > len(rules) + 20
    late = {
        "feedback_worker_retries_total": {"code"},
        "feedback_worker_interruptions_total": {"cause"},
        "feedback_worker_questions_total": {"asked"},
    }
    known = late | series
    told = {named.metric for expression in expressions for named in metrics_of(expression)}
    for expression in expressions:
        labels = {"instance", "job", "process", "le"}
        for named in metrics_of(expression):
            assert named.metric in known, f"{named.metric} in {expression}"
            assert named.labels <= known[named.metric], expression
            labels |= known[named.metric]
        assert set(grouping_labels(expression)) <= labels, expression
    runbook = (ROOT / "docs/operations.md").read_text().partition("## Alerts")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(Feedback\w+)` \|", runbook, re.MULTILINE) == [rule["alert"] for rule in rules]
    page_of_all = (ROOT / "docs/observability.md").read_text()
    documented = set(re.findall(r"`(feedback_\w+)`", page_of_all))
    exposed_names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series if name.startswith("feedback_")}
    assert documented == exposed_names | late.keys()
    assert documented == {re.sub(r"_(bucket|sum|count)$", "", name) for name in told if name.startswith("feedback_")}
