"""A short campaign on PostgreSQL on every change; `python -m tests.chaos --store postgres` runs long ones."""

from pathlib import Path

import pytest

from tests.chaos.campaign import run

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(300)]

KINDS = (
    "kill a worker",
    "pause a worker",
    "a zombie",
    "the database server is killed",
    "the database fails over",
    "database connections are cut",
    "the standby is frozen",
    "a wait for the standby is broken off",
    "a partition's row is locked",
    "the database takes no writes",
)


def test_every_promise_holds_while_servers_fail_over(tmp_path: Path) -> None:
    """The first fault of this seed is a failover, and others follow; nothing that was acknowledged is lost."""
    report = run(tmp_path, seconds=5, seed=47, say=print, kinds=KINDS, store="postgres", pause_s=0.6)
    assert report.checked.violations == []
    assert report.checked.answers > 50
    assert report.injected["the database fails over"] > 0
