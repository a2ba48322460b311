"""The examples of `docs/live-sessions.md`, run; and what its text says in numbers."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from feedback import LiveSessions, SessionIdentity
from feedback.live import MAX_FLUSHES, REGISTER_TIMEOUT_S
from feedback.live_core import BATCH, DEFAULT_TTL_S
from feedback.settings import Settings
from tests.integration.live_hosts import LIFE, Asker

pytestmark = pytest.mark.server

PAGE = (Path(__file__).parents[2] / "docs/live-sessions.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's examples define."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names


def test_the_example_with_threads(page: dict[str, Any], valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    """It writes its log, and leaves nothing on the server."""
    page["run"](valkey_url, tmp_path)
    assert (tmp_path / "session-1.log").read_bytes() == b"a question\nan answer\n"
    assert redis_client.keys("*") == []


def test_the_example_with_asyncio(page: dict[str, Any], valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    asyncio.run(page["run_async"](valkey_url, tmp_path))
    assert (tmp_path / "session-2.log").read_bytes() == b"a question\nan answer\n"
    assert redis_client.keys("*") == []


def test_the_examples_log_answers_a_worker(
    page: dict[str, Any], valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """With as many events as were appended; and its failure when the file was closed too early."""
    log = page["Log"](tmp_path / "log")
    log.append(b"one")
    asker = Asker(redis_client)
    with LiveSessions.from_url(valkey_url) as live, live.register("s", LIFE, log.flush):
        assert asker.flushed(live).durable == 1
        log.close()
        assert asker.flushed(live).reason.startswith("ValueError: ")


def test_the_examples_sessions_answer_while_they_are_open(
    page: dict[str, Any], valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    """A worker that asks between two appends is answered by the example's own flush."""
    life = SessionIdentity(created_at=5)
    asker = Asker(redis_client)
    durable: list[int | None] = []

    log = page["Log"](tmp_path / "log")
    append = log.append

    with LiveSessions.from_url(valkey_url) as live:

        def append_and_ask(event: bytes) -> None:
            append(event)
            durable.append(asker.reply(asker.ask(live, "s", life)).durable)

        log.append = append_and_ask
        page["converse"](live, "s", life, log)
    assert durable == [1, 2]


def test_the_numbers_of_the_page_are_the_programs() -> None:
    settings = Settings(max_note_bytes=1, redis_url="", sidecar_url="", sessions="")
    for said in (
        f"after `timeout` seconds ({REGISTER_TIMEOUT_S:g})",
        f"`max_flushes` ({MAX_FLUSHES})",
        f"`ttl` ({DEFAULT_TTL_S:g} seconds)",
        f"{BATCH} to a command",
        f"`flush_timeout` (a setting of the workers, {settings.flush_timeout:g} seconds)",
    ):
        assert said in PAGE
