"""A host and a worker as two processes, the host killed or paused at each step of a flush."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, Item, Ok, Put, Rejected, Result, SessionNotFound
from feedback.settings import Settings
from tests.harness import settings_for, wait_until
from tests.processes import children

pytestmark = [pytest.mark.server, pytest.mark.process]

ROOT = Path(__file__).parents[2]
TTL_S = 1.0


@pytest.fixture
def client(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[tuple[FeedbackClient, Settings]]:
    """A worker and a projector as processes, and a client of theirs."""
    # A silent owner is waited for longer than it takes to be forgotten.
    settings = settings_for(valkey_url, tmp_path, flush_timeout=0.3, max_attempts=100)
    with (
        children("worker", "projector", settings=settings, logs=tmp_path),
        FeedbackClient.from_url(settings.redis_url) as client,
    ):
        yield client, settings


@contextmanager
def host(settings: Settings, step: str, number: signal.Signals) -> Iterator[subprocess.Popen[str]]:
    arguments = (settings.redis_url, settings.sessions, "s", step, number.name, str(TTL_S))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hosts", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def rated(result: Result) -> bool:
    return isinstance(result, Ok) and isinstance(result.value, Item)


def unknown(result: Result) -> bool:
    return isinstance(result, Rejected) and isinstance(result.error, SessionNotFound)


def test_a_host_that_lives_flushes_for_the_worker(client: tuple[FeedbackClient, Settings]) -> None:
    feedback, settings = client
    with host(settings, "never", signal.SIGKILL):
        assert rated(feedback.put("s", "m1", "positive"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_host_gone_before_it_wrote_is_forgotten_and_its_unwritten_session_with_it(
    client: tuple[FeedbackClient, Settings], number: signal.Signals
) -> None:
    feedback, settings = client
    with host(settings, "before", number):
        assert unknown(feedback.put("s", "m1", "positive"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_host_gone_after_it_wrote_is_forgotten_and_the_disk_is_believed(
    client: tuple[FeedbackClient, Settings], number: signal.Signals
) -> None:
    feedback, settings = client
    with host(settings, "written", number):
        assert rated(feedback.put("s", "m1", "positive"))


def test_a_paused_host_that_goes_on_answers_the_next_try(client: tuple[FeedbackClient, Settings]) -> None:
    feedback, settings = client
    with host(settings, "before", signal.SIGSTOP) as process:
        ticket = feedback.submit(Put("s", "m1", "positive"))
        wait_until(lambda: stopped(process), "the host is paused in its flush")
        os.kill(process.pid, signal.SIGCONT)
        assert rated(ticket.result())


def stopped(process: subprocess.Popen[str]) -> bool:
    state = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    return state == "T"
