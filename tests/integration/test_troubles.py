"""What is in a process's way: how it is put into Redis, how long it counts, and where an operator sees it."""

import json
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from app.diagnosis import diagnose
from feedback import LogUnreadable, StoreUnavailable, keys
from feedback.calls import wall_clock_ms
from feedback.connection import connect
from feedback.troubles import Trouble, TroubleReport, read_troubles
from tests.acceptance.command_line import feedback
from tests.harness import settings_for
from tests.integration.rq_jobs import set_up

pytestmark = pytest.mark.server


def test_a_trouble_is_told_and_taken_back(redis_client: Redis) -> None:
    """Since when stays the same while it lasts, whatever form it takes; the key does not outlive the last report."""
    report = TroubleReport(redis_client, "worker w")
    report.publish()
    assert not redis_client.exists(keys.TROUBLES)
    report.meet(StoreUnavailable("full"))
    report.publish()
    first = read_troubles(redis_client)["worker w"]
    assert (first.code, first.message) == ("StoreUnavailable", "full")
    assert 0 < redis_client.ttl(keys.TROUBLES) <= keys.TROUBLE_TTL_S
    report.meet(LogUnreadable("s", "/p", "gone"), "x" * 10_000)
    report.publish()
    second = read_troubles(redis_client)["worker w"]
    assert (second.code, second.since) == ("LogUnreadable", first.since)
    assert len(second.message) == 500
    report.withdraw()
    assert not redis_client.exists(keys.TROUBLES)


def test_what_a_dead_process_said_is_forgotten(redis_client: Redis) -> None:
    """It does not count past its time, and goes with the next one's first report; nor does anything strange."""
    old = Trouble("StoreUnavailable", "full", since=1, until=wall_clock_ms() - 1)
    redis_client.hset(keys.TROUBLES, mapping={"worker dead": msgspec.json.encode(old), b"\xff": b"?"})
    assert read_troubles(redis_client) == {}
    report = TroubleReport(redis_client, "worker w")
    report.meet(StoreUnavailable("full"))
    report.publish()
    assert redis_client.hkeys(keys.TROUBLES) == [b"worker w"]
    redis_client.set(keys.TROUBLES, "strange")
    assert read_troubles(redis_client) == {}
    report.withdraw()


def test_telling_disturbs_nobody() -> None:
    """A server that does not answer, least of all."""
    with connect("redis://127.0.0.1:1/0") as nobody:
        report = TroubleReport(nobody, "worker w")
        report.meet(StoreUnavailable("full"))
        report.publish()
        report.withdraw()


def test_status_and_doctor_show_it_also_without_a_store(redis_client: Redis, valkey_url: str, tmp_path: Path) -> None:
    """What cannot be read from here is one more trouble, and hides nothing else."""
    settings = settings_for(valkey_url, tmp_path)
    set_up(redis_client, settings)
    report = TroubleReport(redis_client, "worker w")
    report.meet(StoreUnavailable("no space\x1b left"))
    report.publish()
    (tmp_path / "sidecar.sqlite3").write_bytes(b"garbage " * 1000)
    env = {"FEEDBACK_REDIS_URL": valkey_url, "FEEDBACK_SIDECAR_URL": settings.sidecar_url}
    answer = feedback("status", "--json", env=env)
    assert answer.code == 0, answer
    status = json.loads(answer.out)
    assert [(one["reporter"], one["code"]) for one in status["troubles"]] == [
        ("worker w", "StoreUnavailable"),
        ("this command", "StoreForeign"),
    ]
    assert status["lag"] is None
    assert r"StoreUnavailable: no space\x1b left" in feedback("status", env=env).out
    (found,) = (one for one in diagnose(settings, tmp_path) if one.check == "troubles")
    assert not found.ok
    assert found.detail.startswith("worker w: StoreUnavailable: no space")
