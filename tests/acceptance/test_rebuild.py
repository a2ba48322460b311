"""`feedback rebuild`: the cached lists are made anew while they are served."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from feedback import FeedbackClient, Ok, keys
from feedback.settings import Settings
from tests.harness import serving, settings_for, write_session

pytestmark = [pytest.mark.server, pytest.mark.process]


def rebuild(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-P", "-m", "app.cli", "rebuild", "--redis-url", settings.redis_url, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_poisoned_cache_is_gone_after_it_and_lists_stay_right(
    valkey_url: str, redis_client: Redis, tmp_path: Path
) -> None:
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", "m1")
    with serving(settings), FeedbackClient(redis_client) as client:
        assert isinstance(client.put("s", "m1", "positive"), Ok)
        before = client.list("s")
        era = redis_client.get(keys.LIST_ERA)
        answer = rebuild(settings, "--json")
        assert answer.returncode == 0, answer.stderr
        assert msgspec.json.decode(answer.stdout) == {"rebuilt": True}
        assert redis_client.get(keys.LIST_ERA) != era, "what was cached counts no more"
        assert client.list("s") == before
    assert "made anew" in rebuild(settings).stdout


def test_a_server_that_nobody_answers_at_is_said() -> None:
    settings = Settings(max_note_bytes=1, redis_url="redis://127.0.0.1:1/0")
    assert rebuild(settings).returncode == 3
