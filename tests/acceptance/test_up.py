"""`feedback up`: one command that runs everything, keeps it running, and leaves nothing behind."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from tests.acceptance.command_line import FEEDBACK, Up, environment, feedback, runs, wait_for_end
from tests.harness import wait_until

pytestmark = pytest.mark.process

SESSION, ANSWER = "demo-flaky-test", "answer-1"
SHORT = {"FEEDBACK_LEASE_TTL": "1"}
"""Whoever takes over from a worker that was killed waits for that long."""


def test_a_rating_survives_a_restart_on_the_same_port(tmp_path: Path) -> None:
    """Stored, listed, changed; after SIGTERM and a new start everything is there, at the same address."""
    with Up(tmp_path / "data") as first:
        stored = first.feedback("put", SESSION, ANSWER, "positive", "--note", "so klar", "--json")
        assert stored.code == 0, stored.err
        version = stored.document["value"]["version"]
        changed = first.feedback("put", SESSION, ANSWER, "negative", "--if-version", version, "--json")
        assert changed.code == 0, changed.err
        assert first.stop() == 0
        assert not any(map(runs, first.pids.values()))
        assert not (tmp_path / "data/endpoint.json").exists()
    with Up(tmp_path / "data") as second:
        listed = second.feedback("list", SESSION, "--json")
        assert listed.document["value"]["items"] == [changed.document["value"]]
        assert second.url == first.url
        removed = second.feedback(
            "delete", SESSION, ANSWER, "--if-version", changed.document["value"]["version"], "--json"
        )
        assert removed.document == {"ok": True, "value": {"absent": True}}


def test_the_endpoint_is_private_and_settings_that_disagree_with_the_store_are_refused(tmp_path: Path) -> None:
    """`endpoint.json` says where the server is, and only its owner may read it."""
    with Up(tmp_path / "data", "--max-note-bytes", "10") as up:
        path = tmp_path / "data/endpoint.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["redisUrl"] == up.url
        refused = up.feedback("put", SESSION, ANSWER, "positive", "--note", "eleven char", "--json")
        assert (refused.code, refused.document["error"]) == (
            1,
            {"code": "note-too-large", "maxBytes": 10, "actualBytes": 11},
        )
        assert up.stop() == 0
    other = feedback("up", "--data", tmp_path / "data", "--partitions", "8")
    assert (other.code, other.out) == (2, "")
    assert "partitions: 8 here, but the store was set up with 32" in other.err


def test_stops_in_order_worker_then_projector_then_server(tmp_path: Path) -> None:
    """As long as the worker drains, projector and server serve; the endpoint is withdrawn before all that."""
    with Up(tmp_path / "data") as up, Redis.from_url(up.url) as redis:
        os.kill(up.pids["worker"], signal.SIGSTOP)
        up.signal(signal.SIGTERM)
        wait_until(lambda: not (tmp_path / "data/endpoint.json").exists(), "the endpoint is withdrawn")
        answer = feedback("list", SESSION, "--redis-url", up.url, "--json")
        assert answer.document == {"ok": True, "value": {"items": []}}
        assert redis.ping()
        os.kill(up.pids["worker"], signal.SIGCONT)
        assert up.wait() == 0
        assert not any(map(runs, up.pids.values()))


def test_a_signal_while_it_starts_stops_it(tmp_path: Path) -> None:
    """Whatever is up by then goes down again; no endpoint is published."""
    command = (FEEDBACK, "up", "--data", str(tmp_path / "data"))
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        wait_until((tmp_path / "data/up.lock").exists, "it has begun")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, b"stopped; all data is kept\n")
    assert not (tmp_path / "data/endpoint.json").exists()
    # The lock is free only when the last child is gone.
    with Up(tmp_path / "data"):
        pass


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    """SIGINT goes to the terminal's foreground group, in which only `up` is."""
    with Up(tmp_path / "data") as up:
        os.killpg(up.process.pid, signal.SIGINT)
        assert up.wait() == 0
        assert not any(map(runs, up.pids.values()))


def test_sigkill_of_up_takes_its_children_along_and_the_next_start_finds_everything(tmp_path: Path) -> None:
    """No orphan holds files or ports, and what was acknowledged is there."""
    with Up(tmp_path / "data", env=SHORT) as up:
        stored = up.feedback("put", SESSION, ANSWER, "positive", "--json")
        assert stored.code == 0, stored.err
        up.signal(signal.SIGKILL)
        up.wait()
        wait_for_end(up.pids.values())
    with Up(tmp_path / "data", env=SHORT) as again:
        assert again.feedback("list", SESSION, "--json").document["value"]["items"] == [stored.document["value"]]


def test_a_second_up_on_the_same_data_is_refused(tmp_path: Path) -> None:
    """It says why, and the first one goes on."""
    with Up(tmp_path / "data") as up:
        second = feedback("up", "--data", tmp_path / "data")
        assert second.code == 2
        assert "another `feedback up` runs there" in second.err
        assert second.out == ""
        assert up.feedback("list", SESSION).code == 0


@pytest.mark.parametrize("victim", ["worker", "projector", "server"])
def test_a_child_that_dies_is_started_again(tmp_path: Path, victim: str) -> None:
    """Nothing acknowledged is lost, the next command is served, and the log says what happened."""
    with Up(tmp_path / "data", env=SHORT) as up:
        first = up.feedback("put", SESSION, ANSWER, "positive", "--json").document
        os.kill(up.pids[victim], signal.SIGKILL)
        second = up.feedback("put", SESSION, "answer-2", "negative", "--json")
        assert second.code == 0, second.err
        listed = up.feedback("list", SESSION, "--json")
        assert listed.document["value"]["items"] == [first["value"], second.document["value"]]
        wait_until(lambda: '"event":"started again"' in up.errors, "it says so")


def test_uses_a_server_that_runs_already(tmp_path: Path, valkey_url: str, redis_client: Redis) -> None:
    """With FEEDBACK_REDIS_URL nothing is embedded, and the server outlives `up`."""
    env = {"FEEDBACK_REDIS_URL": valkey_url}
    with Up(tmp_path / "data", env=env) as up:
        assert up.url == valkey_url
        assert set(up.pids) == {"worker", "projector"}
        assert feedback("put", SESSION, ANSWER, "positive", env=env).code == 0
        assert len(up.feedback("list", SESSION, "--json").document["value"]["items"]) == 1
        assert up.stop() == 0
    assert redis_client.ping()


def test_no_demo_is_written_into_a_root_that_was_named(tmp_path: Path) -> None:
    """An empty root of the user's stays empty, and one that is missing is refused early."""
    root = tmp_path / "mine"
    missing = feedback("up", "--data", tmp_path / "data", "--sessions", root)
    assert (missing.code, missing.out) == (2, "")
    assert f"SettingsInvalid: sessions: {root}: No such file or directory" in missing.err
    root.mkdir()
    with Up(tmp_path / "data", "--sessions", root) as up:
        assert up.feedback("sessions", "--json").document == {"sessions": []}
    assert list(root.iterdir()) == []


def test_refuses_a_root_that_cannot_be_read(tmp_path: Path) -> None:
    """A root that leads nowhere or is no directory is named with the reason."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    for name, reason in (("loop", "Too many levels of symbolic links"), ("file", "Not a directory")):
        refused = feedback("up", "--data", tmp_path / "data", "--sessions", tmp_path / name, "--json")
        assert (refused.code, refused.out) == (2, "")
        assert json.loads(refused.err)["error"] == {
            "code": "SettingsInvalid",
            "message": f"sessions: {tmp_path / name}: {reason}",
        }


def test_refuses_a_sidecar_of_another_program_and_leaves_it_alone(tmp_path: Path) -> None:
    """Neither another program's database nor a file that is none is touched."""
    data = tmp_path / "data"
    data.mkdir()
    sidecar = data / "sidecar.sqlite3"
    with sqlite3.connect(sidecar) as foreign:
        foreign.execute("CREATE TABLE recipes (name TEXT)")
    foreign.close()
    for content in (sidecar.read_bytes(), b"not a database at all" * 100):
        sidecar.write_bytes(content)
        refused = feedback("up", "--data", data)
        assert (refused.code, refused.out) == (3, "")
        assert refused.err.startswith("StoreForeign: ")
        assert str(sidecar) in refused.err
        assert sidecar.read_bytes() == content


def test_refuses_a_server_that_nobody_answers_at(tmp_path: Path) -> None:
    """Early and typed; nothing keeps running."""
    refused = feedback("up", "--data", tmp_path / "data", env={"FEEDBACK_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert refused.code == 3
    assert refused.err.startswith("QueueUnavailable: ")
