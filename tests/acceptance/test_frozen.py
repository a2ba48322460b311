"""A worker that is frozen while it holds the store's write lock: `up` finds it out, and all goes on without it."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from feedback.crashpoints import VARIABLE, Action, CrashPoint
from tests.acceptance.command_line import FEEDBACK, Up, environment, runs
from tests.harness import wait_until

pytestmark = pytest.mark.process

SESSION = "demo-flaky-test"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process, which is no child of this one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def is_locked(store: Path) -> bool:
    """Whether somebody holds the store's write lock."""
    with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            assert "locked" in str(error), error
            return True
        return False


def test_a_worker_frozen_inside_a_commit_is_killed_and_its_batch_is_done_once(tmp_path: Path) -> None:
    """Its lock goes with it; the caller who waited all the while is answered, with the next revision."""
    data = tmp_path / "data"
    # Each worker stops in its second commit; the next one does that batch in its first.
    env = {VARIABLE: f"{CrashPoint.INSIDE_COMMIT}:{Action.STOP}:2", "FEEDBACK_LEASE_TTL": "1"}
    with Up(data, env=env) as up:
        assert up.feedback("put", SESSION, "answer-1", "positive").code == 0
        command = (FEEDBACK, "put", SESSION, "answer-2", "negative", "--json", "--data", data)
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as asking:
            wait_until(lambda: is_stopped(up.pids["worker"]), "the worker is frozen")
            assert is_locked(data / "sidecar.sqlite3")
            answer, _ = asking.communicate(timeout=60)
        assert (asking.returncode, json.loads(answer)["ok"]) == (0, True)
        assert not runs(up.pids["worker"])
        assert '"event":"stands still, killed"' in up.errors
        listed = up.feedback("list", SESSION, "--json").document
        assert [item["rating"] for item in listed["value"]["items"]] == ["positive", "negative"]
