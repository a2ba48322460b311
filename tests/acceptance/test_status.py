"""`feedback status`: live, for machines, and about a system whose workers are all dead; and `feedback --version`."""

import json
import os
import pty
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from redis import Redis

from app.inspection import read_parked
from app.status import read_status
from feedback import FeedbackClient, Put, keys
from tests.acceptance.command_line import FEEDBACK, Up, environment, feedback
from tests.harness import elsewhere, serving, settings_for, wait_until
from tests.integration.rq_jobs import partition_of, put_command, request_of, set_up

pytestmark = [pytest.mark.server, pytest.mark.process]


def test_the_version_is_told() -> None:
    assert feedback("--version").out == f"session-feedback {version('session-feedback')}\n"


def test_parked_sessions_are_shown_with_their_partition_and_are_gone_with_their_worker(
    redis_client: Redis, valkey_url: str, tmp_path: Path
) -> None:
    """Two commands of one Session wait for a host without an agent: one parked Session, two claimed commands."""
    settings = elsewhere(settings_for(valkey_url, tmp_path, agent_timeout=0.2, max_attempts=1000)).settings
    with serving(settings, projector=False), FeedbackClient.from_url(valkey_url, host="box-9") as client:
        client.submit_many([Put("s", "m", "positive"), Put("s", "n", "positive")])
        wait_until(lambda: read_status(redis_client, settings.sidecar_url).parked == 1, "it is said to be parked")
        (busy,) = (one for one in read_status(redis_client, settings.sidecar_url).partitions if not one.is_quiet)
        assert (busy.partition, busy.parked, busy.claimed, busy.waiting) == (
            partition_of(settings, "s").number,
            1,
            2,
            0,
        )
        assert busy.oldest is not None
        assert busy.owner is not None
        (key,) = redis_client.keys(keys.parked("*"))
        assert 0 < redis_client.ttl(key) <= keys.PARKED_TTL_S
        redis_client.set(keys.parked("stranger"), "?")
        assert read_parked(redis_client, ["stranger", "nobody"]) == {}
    after = read_status(redis_client, settings.sidecar_url)
    assert (after.workers, after.parked, after.waiting) == ((), 0, 2)


def heed_interrupts() -> None:
    """Tests that run in a shell's background ignore them, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_it_is_shown_live_and_when_no_worker_lives(redis_client: Redis, valkey_url: str, tmp_path: Path) -> None:
    """Line by line for machines, in place on a terminal; Ctrl-C ends it with exit code 0."""
    settings = settings_for(valkey_url, tmp_path)
    set_up(redis_client, settings)
    command = put_command("s", "m")
    with FeedbackClient.from_url(valkey_url) as client:
        client.submit_many([request_of(command)])
    redis_client.hset(keys.job(command.command_id), "enqueued_at", "2026-01-01T00:00:00.000000Z")
    env = {"FEEDBACK_REDIS_URL": valkey_url, "FEEDBACK_SIDECAR_URL": settings.sidecar_url}
    terminal, other_end = pty.openpty()
    words = (FEEDBACK, "status", "--watch")
    shown = subprocess.Popen(
        words,
        env=environment() | env | {"TERM": "xterm"},
        stdout=other_end,
        stderr=other_end,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it only sets a signal
    )
    os.close(other_end)
    lines = subprocess.Popen(
        (*words, "1", "--json"),
        env=environment() | env,
        stdout=subprocess.PIPE,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it only sets a signal
    )
    try:
        assert lines.stdout is not None
        first, second = (json.loads(lines.stdout.readline()) for _ in range(2))
        assert first["waiting"] == second["waiting"] == 1
        assert first["oldest"] == 1767225600000
        assert {one["owner"] for one in first["partitions"]} == {None}
        seen, wanted = b"", (b"(nobody)", f"partition {partition_of(settings, 's').number} ".encode())
        while not all(words in seen for words in wanted):
            seen += os.read(terminal, 65536)
        for process in (shown, lines):
            process.send_signal(signal.SIGINT)
        # Whoever shows something waits until it is read, at its end as well.
        with suppress(OSError):
            while os.read(terminal, 65536):
                pass
        assert (lines.wait(30), shown.wait(30)) == (0, 0)
    finally:
        for process in (shown, lines):
            process.kill()
            process.wait()
        assert lines.stdout is not None
        lines.stdout.close()
        os.close(terminal)


def three_in_a_row() -> int:
    """The first of three ports that nobody listens on, below those that the kernel gives to whoever asks for any."""
    for first in range(20_000 + 4 * (os.getpid() % 2_500), 32_000, 4):
        with ExitStack() as opened, suppress(OSError):
            for port in range(first, first + 3):
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no three free ports")


def test_processes_serve_metrics_and_health_where_they_are_told_to(tmp_path: Path) -> None:
    """`up` gives each of its processes a port; one more worker on a port that is taken ends with exit code 2.

    Its gateway has any free one where that is wanted, and `up` says which.
    """
    first = three_in_a_row()
    with Up(tmp_path / "data", "--metrics-port", str(first), "--gateway", "0") as up:
        with urllib.request.urlopen(f"{up.ready['gatewayUrl']}/healthz", timeout=30) as answer:
            assert answer.status == 200
        urls = up.ready["metricsUrls"]
        assert urls.keys() == {"worker", "projector", "gateway"}
        for process, url in urls.items():
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert f'feedback_build_info{{process="{process}",'.encode() in answer.read()
            for health in ("healthz", "readyz"):
                with urllib.request.urlopen(url.replace("metrics", health), timeout=30) as answer:
                    assert answer.read() == b"ok\n"
        refused = up.feedback("worker", "--metrics-port", str(first))
        assert refused.code == 2
        assert f"metrics_host, metrics_port: 127.0.0.1:{first}: Address already in use" in refused.err
