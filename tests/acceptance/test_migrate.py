"""`feedback migrate`: a system goes on where it was, on another engine."""

import json
from pathlib import Path

import pytest
from redis import Redis

from app.exits import ExitCode
from feedback import FeedbackClient, Put
from feedback.settings import Settings
from tests.acceptance.command_line import feedback
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rating import items_of
from tests.outcomes import assert_sound, is_idle
from tests.postgres import GUARDED, PASSWORD, Databases

pytestmark = [pytest.mark.server, pytest.mark.process]


def put_and_list(settings: Settings, ids: list[str], message_id: str) -> list[str]:
    """One more rating; what is listed then. What was asked before is answered as it was then."""
    with FeedbackClient.from_url(settings.redis_url) as client:
        ticket = client.submit(Put("s", message_id, "positive", "note\0", None))
        revision = ticket.result(timeout=20).revision
        ids.append(ticket.command_id)
        assert [client.result_of(command_id, timeout=20).revision for command_id in ids] == [*range(1, len(ids) + 1)]
        return [item.message_id for item in items_of(client.list("s", at_least=revision))]


def test_a_system_is_moved_to_postgresql_and_back_and_goes_on(
    redis_client: Redis, valkey_url: str, databases: Databases, tmp_path: Path
) -> None:
    embedded = settings_for(valkey_url, tmp_path)
    write_session(embedded, "s", "m1", "m2", "m3")
    ids: list[str] = []
    env = {"FEEDBACK_REDIS_URL": valkey_url}
    with databases.one() as url:
        shared = settings_for(valkey_url, tmp_path, sidecar_url=url)
        back = settings_for(valkey_url, tmp_path, sidecar_url=f"sqlite:///{tmp_path / 'back.sqlite3'}")
        there = ("migrate", "--from", embedded.sidecar_url, "--to", url)
        with serving(embedded):
            assert put_and_list(embedded, ids, "m1") == ["m1"]
            wait_until(lambda: is_idle(redis_client, embedded), "nothing waits")
            refused = feedback(*there, env=env)
            assert refused.code == ExitCode.USAGE
            assert "1 workers are alive" in refused.err
        moved = feedback(*there, env=env)
        assert (moved.code, moved.err) == (ExitCode.SUCCESS, "")
        assert "\n   to postgresql://postgres@" in moved.out
        with serving(shared):
            assert put_and_list(shared, ids, "m2") == ["m1", "m2"]
        told = feedback("migrate", "--json", "--from", url, "--to", back.sidecar_url, env=env)
        document = json.loads(told.out)
        assert (document["resumed"], document["already"]) == (False, False)
        assert {name: census["rows"] for name, census in document["tables"].items()} == {
            "topology": 5,
            "fence": 4,
            "session": 1,
            "item": 2,
            "command": 2,
        }
        again = json.loads(feedback("migrate", "--json", "--from", url, "--to", back.sidecar_url, env=env).out)
        assert again == document | {"resumed": True, "already": True}
        left = feedback("doctor", "--json", "--sidecar-url", url, env=env)
        assert "StoreMoved" in left.out
    with serving(back):
        assert put_and_list(back, ids, "m3") == ["m1", "m2", "m3"]
        wait_until(lambda: is_idle(redis_client, back), "nothing waits")
    assert_sound(redis_client, back, ids)


def test_an_unfinished_move_is_said_and_can_be_given_up(databases: Databases, tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path / 'a'}", f"sqlite:///{tmp_path / 'b'}"
    assert feedback("migrate", "--from", source, "--to", target).code == ExitCode.USAGE
    missing = feedback("migrate", "--from", "mysql://h/d", "--to", target)
    assert (missing.code, missing.out) == (ExitCode.USAGE, "")
    with databases.one() as url:
        wrong = url.replace("postgres@", f"{GUARDED}:nobody@")
        refused = feedback("migrate", "--json", "--from", wrong, "--to", target)
        assert refused.code == ExitCode.INFRASTRUCTURE
        assert json.loads(refused.err)["error"]["code"] == "StoreUnavailable"
        assert PASSWORD not in refused.err
        assert "nobody" not in refused.err
        given_up = feedback("migrate", "--abandon", "--from", target, "--to", url)
        assert given_up.code == ExitCode.USAGE
        assert "there is no store at" in given_up.err
