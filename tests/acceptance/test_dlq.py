"""`feedback dlq` as operators use it: what it prints, its exit codes, and two of them at once."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from feedback import CommandExpired, CommandFailed, FeedbackClient, LogCorrupt, keys
from feedback.settings import Settings
from feedback.wire import encode_job
from tests.acceptance.command_line import FEEDBACK, Answer, environment, feedback
from tests.harness import serving, settings_for, write_session
from tests.integration.rq_jobs import damaged_log, events_of, partition_of, put_command, request_of, set_up
from worker import engine
from worker.core.batching import Decisions, decide_batch

pytestmark = [pytest.mark.server, pytest.mark.process]

SESSIONS = ("s-one", "s-two")
MESSAGES = tuple(f"m{number}" for number in range(150))


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path)
    for session_id in SESSIONS:
        write_session(settings, session_id, *MESSAGES)
    set_up(redis_client, settings)
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


def fail(
    settings: Settings, client: FeedbackClient, session_id: str, *message_ids: str, **members: object
) -> list[str]:
    """Puts that failed together on a corrupt log, which is mended by now; their ids, in the order of submission."""
    commands = [put_command(session_id, message_id, **members) for message_id in message_ids]
    with damaged_log(settings, session_id), serving(settings, projector=False):
        for ticket in client.submit_many([request_of(command) for command in commands]):
            with pytest.raises(LogCorrupt):
                ticket.result()
    return [command.command_id for command in commands]


def dlq(settings: Settings, *words: str) -> Answer:
    return feedback("dlq", *words, env={"FEEDBACK_REDIS_URL": settings.redis_url})


def document(settings: Settings, *words: str, code: int = 0) -> Any:
    answer = dlq(settings, *words, "--json")
    assert answer.code == code, answer
    return answer.document


def test_a_failed_command_is_listed_shown_retried_and_gone(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    (command_id,) = fail(settings, client, "s-one", "m1", note="\x1b[31mred\nlines")
    (letter,) = document(settings, "list")["letters"]
    assert (letter["commandId"], letter["operation"]) == (command_id, "put")
    assert (letter["sessionId"], letter["messageId"]) == ("s-one", "m1")
    assert letter["failure"]["code"] == "LogCorrupt"
    assert "note" not in letter, "notes are shown to who asks for one"
    shown = document(settings, "show", command_id)
    assert (shown["ok"], shown["letter"]) == (True, letter)
    assert (shown["command"]["note"], shown["command"]["ifVersion"]) == ("\x1b[31mred\nlines", None)
    assert "LogCorrupt" in shown["traceback"]
    text = dlq(settings, "list").out + dlq(settings, "show", command_id).out
    assert text.count(command_id) == 2
    assert "LogCorrupt" in text
    assert "\\x1b[31mred\\nlines" in text
    assert "\x1b" not in text
    assert dlq(settings, "retry", command_id).out == "1 retried\n"
    with serving(settings, projector=False):
        assert client.result_of(command_id).ok
    assert document(settings, "list") == {"letters": []}
    assert dlq(settings, "list").out == "nothing here\n"


def test_two_retries_at_once_put_each_back_once_and_in_order(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    """Their counts add up; each Session's commands are applied in the order in which they were sent."""
    ids = {session_id: fail(settings, client, session_id, *MESSAGES) for session_id in SESSIONS}
    command = (FEEDBACK, "dlq", "retry", "--all", "--json", "--redis-url", settings.redis_url)
    running = [subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sum(report["retried"] for report in reports) == 2 * len(MESSAGES)
    with serving(settings, projector=False):
        for session_id in SESSIONS:
            assert client.result_of(ids[session_id][-1]).revision == len(MESSAGES)
    for session_id in SESSIONS:
        events = events_of(redis_client, partition_of(settings, session_id))
        assert [event.command_id for event in events if event.session_id == session_id] == ids[session_id]
    assert document(settings, "retry", "--all") == {"ok": True, "retried": 0, "expired": 0, "foreign": 0, "absent": 0}


def test_pages_and_rules(settings: Settings, client: FeedbackClient) -> None:
    """Each command is on one page, and `--session` and `--code` narrow all steps alike."""
    ids = fail(settings, client, "s-one", *MESSAGES[:5]) + fail(settings, client, "s-two", *MESSAGES[:2])
    seen: list[str] = []
    more: Sequence[str] = ()
    while True:
        page = document(settings, "list", "--limit", "3", *more)
        seen += [letter["commandId"] for letter in page["letters"]]
        if "next" not in page:
            break
        assert len(page["letters"]) == 3
        more = ("--after", page["next"])
    assert sorted(seen) == sorted(ids)
    assert len(document(settings, "list", "--session", "s-two", "--code", "LogCorrupt")["letters"]) == 2
    assert document(settings, "list", "--code", "LogUnreadable") == {"letters": []}
    assert document(settings, "retry", "--session", "s-two")["retried"] == 2
    assert document(settings, "drop", "--code", "LogUnreadable", "--yes") == {"ok": True, "dropped": 0, "absent": 0}
    assert document(settings, "drop", "--session", "s-one", "--yes")["dropped"] == 5
    assert document(settings, "list") == {"letters": []}


def test_an_id_that_has_not_failed_is_said(settings: Settings, client: FeedbackClient) -> None:
    """Exit code 1, also for a second run by id; what is there is done all the same."""
    unknown = str(uuid4())
    error = {"ok": False, "error": {"code": "not-failed", "commandId": unknown}}
    assert document(settings, "show", unknown, code=1) == error
    first, second = fail(settings, client, "s-one", "m1", "m2")
    report = document(settings, "retry", first, unknown, first, code=1)
    assert report == {"ok": False, "retried": 1, "expired": 0, "foreign": 0, "absent": 1}
    assert document(settings, "retry", first, code=1)["absent"] == 1
    assert document(settings, "drop", second) == {"ok": True, "dropped": 1, "absent": 0}
    again = dlq(settings, "drop", second)
    assert (again.code, again.out.splitlines()[0]) == (1, "0 dropped")


def test_a_command_past_its_deadline_is_left(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    command = put_command("s-one", "m1", expiresAt=1)
    with serving(settings, projector=False):
        redis_client.hset(keys.job(command.command_id), items=["data", encode_job(command), "status", "queued"])
        redis_client.rpush(keys.queue(partition_of(settings, "s-one")), command.command_id)
        with pytest.raises(CommandExpired):
            client.result_of(command.command_id)
    assert document(settings, "retry", "--all")["expired"] == 1
    answer = dlq(settings, "retry", command.command_id)
    assert answer.code == 1
    assert "1 left: their deadline has passed" in answer.out
    assert "passed: it can be dropped, not retried" in dlq(settings, "show", command.command_id).out


def test_a_foreign_job_can_be_seen_and_dropped_only(settings: Settings, redis_client: Redis) -> None:
    partition = partition_of(settings, "s-one")
    redis_client.hset(keys.job("foreign-1"), items=["data", b"\xc1", "status", "failed"])
    redis_client.zadd(keys.failed_registry(partition), {"foreign-1": 2e10})
    (letter,) = document(settings, "list")["letters"]
    assert (letter["commandId"], letter["operation"], letter["sessionId"]) == ("foreign-1", None, None)
    assert "not a feedback command" in letter["problem"]
    assert document(settings, "show", "foreign-1")["command"] is None
    assert document(settings, "retry", "foreign-1", code=1)["foreign"] == 1
    assert document(settings, "retry", "--all")["foreign"] == 1
    assert document(settings, "drop", "foreign-1")["dropped"] == 1


def test_a_command_that_broke_the_code_shows_where(
    settings: Settings, client: FeedbackClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(snapshot: Any, batch: Any, sequences: Any, **more: Any) -> Decisions:
        if any(pending.command.message_id == "m1" for pending in batch):
            raise ZeroDivisionError("by nothing")
        return decide_batch(snapshot, batch, sequences, **more)

    monkeypatch.setattr(engine, "decide_batch", breaking)
    command = put_command("s-one", "m1")
    with serving(settings, projector=False), pytest.raises(CommandFailed):
        client.submit(request_of(command)).result()
    shown = document(settings, "show", command.command_id)
    assert shown["letter"]["failure"] == {"code": "CommandFailed", "message": "ZeroDivisionError: by nothing"}
    assert "in breaking" in shown["traceback"]


@pytest.mark.parametrize(
    "words",
    [
        ("retry",),
        ("drop", "--yes"),
        ("retry", "some-id", "--all"),
        ("retry", "--all", "--code", "LogCorrupt"),
        ("drop", "--all"),
        ("list", "--after", "no cursor"),
        ("list", "--limit", "0"),
        ("show",),
        (),
    ],
)
def test_what_is_not_plain_is_refused(settings: Settings, words: Sequence[str]) -> None:
    """No choice, two choices, a rule that drops where nobody can be asked: exit code 2, nothing done."""
    answer = dlq(settings, *words, "--json")
    assert (answer.code, answer.out) == (2, ""), answer
    assert json.loads(answer.err)["error"]["message"]


@pytest.mark.parametrize(("said", "code", "dropped"), [("y", 0, 2), ("n", 1, 0), ("", 1, 0)])
def test_a_terminal_is_asked_before_a_rule_drops(
    settings: Settings, client: FeedbackClient, said: str, code: int, dropped: int
) -> None:
    """On stderr, with the number; stdout holds the answer alone."""
    fail(settings, client, "s-one", "m1", "m2")
    ours, theirs = pty.openpty()
    try:
        command = (FEEDBACK, "dlq", "drop", "--all", "--json", "--redis-url", settings.redis_url)
        os.write(ours, f"{said}\n".encode())
        done = subprocess.run(command, env=environment(), stdin=theirs, capture_output=True, timeout=60, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert json.loads(done.stdout)["dropped"] == dropped
    assert b"Drop 2 failed commands for good? [y/N]" in done.stderr
    assert len(document(settings, "list")["letters"]) == 2 - dropped


def test_without_a_server_no_answer_can_be_had(tmp_path: Path) -> None:
    answer = feedback("dlq", "list", "--json", "--data", tmp_path)
    assert (answer.code, answer.out) == (3, "")
