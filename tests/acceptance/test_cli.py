"""Every command as its users call it: what it prints, its exit code, and what it says about bad input."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from app.cli.dispatch import parser_for
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.acceptance.command_line import FEEDBACK, Answer, Up, environment, feedback
from tests.harness import wait_until

pytestmark = pytest.mark.process

ODD_IDS = ("naïve/../☃", "..", " ", "a\nb", "🚀" * 20, "-x", "'; DROP TABLE item; --")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One running system for the commands of this module; each test rates a Session of its own."""
    home = tmp_path_factory.mktemp("up")
    (home / "sessions").mkdir()
    with Up(home / "data", "--sessions", home / "sessions", "--max-note-bytes", "64") as running:
        yield running


@pytest.fixture
def session(up: Up) -> str:
    """A new Session with two answers, `a1` and `a2`."""
    return written(up, f"session-{uuid4()}")


def written(up: Up, session_id: str) -> str:
    with LogWriter(Path(up.ready["sessions"]), session_id, created_at=1_790_000_000_000, cwd="/w") as log:
        for turn in (1, 2):
            log.append(exchange(turn, "Why?", "Because.", user_id=f"q{turn}", assistant_id=f"a{turn}"))
    return session_id


def usage_error(answer: Answer, code: str, *words: str) -> None:
    """Exit code 2, nothing on stdout, one JSON line on stderr that says what is wrong."""
    infrastructure_error(answer, code, *words, exit_code=2)


def infrastructure_error(answer: Answer, code: str, *words: str, exit_code: int = 3) -> None:
    assert (answer.code, answer.out) == (exit_code, ""), answer
    assert answer.err.count("\n") == 1
    error = json.loads(answer.err)["error"]
    assert error["code"] == code
    for word in words:
        assert word in error["message"]


def test_put_prints_the_contracts_result_and_nothing_else(up: Up, session: str) -> None:
    """One JSON object with exactly the contract's members, exit code 0."""
    answer = up.feedback("put", session, "a1", "positive", "--note", "schön", "--actor", "ada", "--json")
    assert (answer.code, answer.err) == (0, "")
    item = answer.document["value"]
    assert answer.document["ok"] is True
    assert list(item) == ["messageId", "rating", "note", "version", "createdAt", "updatedAt"]
    assert (item["messageId"], item["rating"], item["note"]) == ("a1", "positive", "schön")


def test_a_command_id_makes_put_safe_to_send_again(up: Up, session: str) -> None:
    """The second answer is the first one's, byte for byte; another payload under the id is refused."""
    words = ("put", session, "a1", "positive", "--command-id", str(uuid4()), "--json")
    first, second = up.feedback(*words), up.feedback(*words)
    assert first.code == 0
    assert second == first
    reused = up.feedback(*words, "--note", "something else")
    infrastructure_error(reused, "CommandIdReused", words[5])


def test_business_failures_exit_with_1(up: Up, session: str) -> None:
    """Each of the contract's error codes, as a result on stdout."""
    first = up.feedback("put", session, "a1", "positive", "--json").document["value"]
    refused = {
        ("put", session, "a1", "negative"): {"code": "version-conflict", "current": first},
        ("put", session, "a2", "negative", "--if-version", "v"): {"code": "version-conflict", "current": None},
        ("put", session, "q1", "positive"): {"code": "target-not-found", "sessionId": session, "messageId": "q1"},
        ("put", "", "a1", "positive"): {"code": "session-not-found", "sessionId": ""},
        ("put", session, "a2", "positive", "--note", "\u00a0\ufeff"): {"code": "note-blank"},
        ("put", session, "a2", "positive", "--note", "é" * 33): {
            "code": "note-too-large",
            "maxBytes": 64,
            "actualBytes": 66,
        },
        ("delete", session, "a1", "--if-version", "v"): {"code": "version-conflict", "current": first},
        ("list", "nobody"): {"code": "session-not-found", "sessionId": "nobody"},
    }
    for words, error in refused.items():
        answer = up.feedback(*words, "--json")
        assert (answer.code, answer.document, answer.err) == (1, {"ok": False, "error": error}, ""), words


def test_text_for_people_has_no_colour_unless_it_is_a_terminal(up: Up, session: str) -> None:
    """Short sentences; the version that a change needs is among them."""
    stored = up.feedback("put", session, "a1", "positive", "--note", "so\x1b[31m!")
    assert stored.code == 0
    assert re.fullmatch(r'stored: positive  a1  "so\\x1b\[31m!"\nversion [0-9a-f-]{36}\n', stored.out)
    listed = up.feedback("list", session)
    assert stored.out.splitlines()[1].removeprefix("version ") in listed.out
    conflict = up.feedback("put", session, "a1", "negative")
    assert conflict.code == 1
    assert conflict.out.startswith("refused: the message has other feedback now; --if-version ")
    for message, words in (("q1", "has no answer of the assistant"), ("a2", "removed")):
        command = ("put", session, message, "positive") if message == "q1" else ("delete", session, message)
        assert words in up.feedback(*command).out


@pytest.mark.parametrize("session_id", ODD_IDS)
def test_any_unicode_text_is_an_id(up: Up, session_id: str) -> None:
    """Ids are data: never a path, an option after `--`, or something to interpret."""
    written(up, session_id)
    stored = up.feedback("put", "--json", "--data", up.data, "--", session_id, "a1", "positive")
    assert stored.code == 2  # options after the command's own `--` are ids too
    stored = feedback("put", "--data", up.data, "--json", "--", session_id, "a1", "positive")
    assert stored.code == 0, stored.err
    listed = feedback("list", "--data", up.data, "--json", "--", session_id)
    assert listed.document["value"]["items"] == [stored.document["value"]]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("put", b"\xff", "a1", "positive"), "$.sessionId"),
        (("put", "s", b"\xed\xa0\x80", "positive"), "$.messageId"),
        (("put", "s", "a1", "positive", "--note", b"\xff"), "$.note"),
        (("put", "s", "a1", "positive", "--actor", "a" * 257), "$.actor"),
        (("put", "s", "a1", "positive", "--if-version", b"\xff"), "$.ifVersion"),
        (("put", "s", "a1", "positive", "--command-id", "7"), "$.commandId"),
        (("list", b"\xff"), "$.sessionId"),
        (("list", "s", "--at-least", "-1"), "atLeast"),
        (("put", "s", "a1", "positive", "--timeout", "-1"), "timeout"),
        (("put", "s", "a1", "positive", "--timeout", "nan"), "timeout"),
        (("list", "s", "--timeout", "inf"), "timeout"),
        (("delete", "s", b"\xff"), "$.messageId"),
    ],
)
def test_an_invalid_request_exits_with_2_and_names_its_member(
    up: Up, words: tuple[str | bytes, ...], path: str
) -> None:
    """Nothing is sent; path and reason are said."""
    usage_error(up.feedback(*words, "--json"), "InvalidRequest", path)


@pytest.mark.parametrize(
    "words",
    [
        ("put", "s", "a1", "great"),
        ("put", "s", "a1"),
        ("list", "s", "--at-least", "soon"),
        ("sessions", "--limit", "0"),
        ("rate", "s"),
        ("list", "s", "--tim", "3"),
    ],
)
def test_bad_arguments_exit_with_2(words: tuple[str, ...]) -> None:
    """In words with the usage, and as JSON for programs."""
    answer = feedback(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "usage: feedback" in answer.err
    usage_error(feedback(*words, "--json"), "Usage")


def test_without_a_running_system_it_says_how_to_start_one(tmp_path: Path) -> None:
    """No silent attempt at some default server."""
    for command in (("list", "s"), ("put", "s", "m", "positive"), ("status",), ("worker",), ("projector",)):
        answer = feedback(*command, "--data", tmp_path, "--json")
        infrastructure_error(answer, "QueueUnavailable", "feedback up --data", "FEEDBACK_REDIS_URL")


def test_an_endpoint_file_that_is_none_is_said(tmp_path: Path) -> None:
    """With its path and what is wrong with it."""
    for content in (b"", b"{}", b'{"redisUrl": 7}', b"\xff"):
        (tmp_path / "endpoint.json").write_bytes(content)
        usage_error(feedback("list", "s", "--data", tmp_path, "--json"), "SettingsInvalid", "endpoint.json")


def test_an_endpoint_counts_only_for_the_server_that_it_names(tmp_path: Path, up: Up) -> None:
    """`--data` of one system beside the URL of another mixes nothing of the two."""
    stale = {**json.loads((up.data / "endpoint.json").read_text()), "redisUrl": "redis://127.0.0.1:1/0"}
    (tmp_path / "endpoint.json").write_text(json.dumps(stale))
    infrastructure_error(feedback("list", "s", "--data", tmp_path, "--json"), "QueueUnavailable")
    answer = feedback("sessions", "--data", tmp_path, "--redis-url", up.url, "--json")
    usage_error(answer, "SettingsInvalid", str(tmp_path / "sessions"))


def test_a_url_that_nobody_answers_fails_within_the_timeout(up: Up) -> None:
    """Refused, or silent: exit code 3 within the timeout; a named server wins over `--data`."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url, said in (
            ("redis://127.0.0.1:1/0", "refused"),
            (f"redis://127.0.0.1:{port}/0", "within 1 s"),
        ):
            answer = feedback(
                *("put", "s", "a1", "positive", "--timeout", "1", "--json", "--data", up.data),
                env={"FEEDBACK_REDIS_URL": url},
            )
            infrastructure_error(answer, "QueueUnavailable", said)
    for words in (("list", "s"), ("up", "--data", up.data), ("doctor",)):
        answer = feedback(*words, "--redis-url", "ftp://nowhere", "--json")
        usage_error(answer, "SettingsInvalid", "redis_url", "not a Redis URL")


def test_sessions_shows_what_there_is_to_rate(up: Up, session: str) -> None:
    """Messages with role, first words and current feedback; feedback of an earlier life of the Session is not shown."""
    item = up.feedback("put", session, "a1", "positive", "--json").document["value"]
    shown = {one["sessionId"]: one for one in up.feedback("sessions", "--limit", "1000", "--json").document["sessions"]}
    assert shown[session] == {
        "sessionId": session,
        "createdAt": 1_790_000_000_000,
        "cwd": "/w",
        "messages": [
            {"messageId": "q1", "role": "user", "text": "Why?", "feedback": None},
            {"messageId": "a1", "role": "assistant", "text": "Because.", "feedback": item},
            {"messageId": "q2", "role": "user", "text": "Why?", "feedback": None},
            {"messageId": "a2", "role": "assistant", "text": "Because.", "feedback": None},
        ],
    }
    text = up.feedback("sessions", "--limit", "1000")
    assert text.code == 0
    assert session in text.out


def test_sessions_pages_and_a_broken_log_hides_no_other(tmp_path: Path) -> None:
    """`next` leads through the whole root, without a running system; a log that cannot be read says why."""
    root = tmp_path / "sessions"
    for name in ("a", "b", "c", "d", "e"):
        with LogWriter(root, name, created_at=1, cwd=None, compression="none") as log:
            log.append(exchange(1, "?", "!", user_id="q", assistant_id="a"))
    broken = root / "_no-cwd/b/session.jsonl"
    broken.write_bytes(broken.read_bytes().replace(b'"seq":1', b'"seq":7'))
    (root / "_no-cwd/c/session.jsonl").unlink()
    (root / "_no-cwd/c/session.v9.jsonl").write_bytes(b'{"type":"session","version":9}\n')
    shown: list[dict[str, object]] = []
    after: list[str] = []
    while True:
        page = feedback("sessions", "--data", tmp_path, "--limit", "2", "--json", *after).document
        shown += page["sessions"]
        assert len(page["sessions"]) <= 2
        if "next" not in page:
            break
        after = ["--after", page["next"]]
    assert [one["sessionId"] for one in shown] == ["a", "b", "c", "d", "e"]
    assert [one["sessionId"] for one in shown if "error" in one] == ["b", "c"]
    errors = [one["error"] for one in shown if "error" in one]
    assert [error["code"] for error in errors if isinstance(error, dict)] == ["LogCorrupt", "LogFormatUnsupported"]
    assert not (tmp_path / "sidecar.sqlite3").exists()
    assert "b  " in feedback("sessions", "--data", tmp_path).out


def test_sessions_says_that_the_root_is_missing(tmp_path: Path) -> None:
    """With what may name another; so does whatever else is about a system that is not in that directory."""
    for words in (("sessions",), ("export", "--format", "jsonl", "-o", str(tmp_path / "x"))):
        answer = feedback(*words, "--data", tmp_path, "--json")
        usage_error(
            answer, "SettingsInvalid", f"{tmp_path}/sessions: No such file or directory; name the home", "--data"
        )


def test_a_store_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    """In one sentence, whatever wanted it: where it would be, what names another, and who makes one."""
    (tmp_path / "sessions").mkdir()
    told = f"no store at sqlite:///{tmp_path}/sidecar.sqlite3: --data or --sidecar-url names another; "
    output = ("--output", str(tmp_path / "x"))
    for words in (
        ("audit", "demo-flaky-test"),
        ("export", "--format", "jsonl", *output),
        ("export", "--format", "json", *output),
        ("import", "--format", "json", str(tmp_path / "x")),
    ):
        answer = feedback(*words, "--data", tmp_path, "--json")
        infrastructure_error(answer, "StoreUnavailable", told, f"`feedback up --data {tmp_path}`")
    assert [path.name for path in tmp_path.iterdir()] == ["sessions"]


def test_status_shows_owners_queues_and_lag(up: Up, session: str) -> None:
    """Every partition has the owner, nothing waits, the projection catches up."""
    up.feedback("put", session, "a1", "positive")
    wait_until(lambda: up.feedback("status", "--json").document["lag"] == 0, "the projection catches up")
    status = up.feedback("status", "--json").document
    assert status["topology"] == {"generation": 1, "partitions": 32, "maxNoteBytes": 64}
    assert status["server"]["name"] == "valkey"
    assert status["server"]["appendOnly"] is True
    assert (status["waiting"], status["claimed"], status["failed"]) == (0, 0, 0)
    assert {one["owner"] for one in status["partitions"]} == set(status["workers"])
    assert [one["partition"] for one in status["partitions"]] == list(range(32))
    text = feedback("status", "--data", up.data, env={"COLUMNS": "40"}).out
    assert "generation 1, 32 partitions" in text
    assert status["workers"][0] in text, "what is no terminal has no width"


def test_doctor_is_content_with_what_up_runs(up: Up) -> None:
    """Exit code 0, and a line for each thing that it looked at."""
    answer = up.feedback("doctor", "--json")
    assert answer.code == 0, answer.out
    checks = [finding["check"] for finding in answer.document["findings"]]
    assert checks == [
        *("server", "append-only file", "eviction", "store", "Session logs", "topology", "workers", "projector"),
    ]
    assert all(finding["ok"] and "action" not in finding for finding in answer.document["findings"])
    assert up.feedback("doctor").out.count("ok  ") == len(checks)


def test_doctor_says_what_to_do_about_each_finding(tmp_path: Path, valkey_url: str, redis_client: object) -> None:
    """A bare server without persistence, workers or store: exit code 3, each finding with its action."""
    answer = feedback("doctor", "--data", tmp_path, "--redis-url", valkey_url, "--json")
    assert answer.code == 3
    assert answer.document["healthy"] is False
    wrong = {finding["check"]: finding["action"] for finding in answer.document["findings"] if not finding["ok"]}
    assert list(wrong) == ["append-only file", "store", "Session logs", "topology", "workers", "projector"]
    assert "appendonly yes" in wrong["append-only file"]
    assert "feedback worker" in wrong["workers"]
    text = feedback("doctor", "--data", tmp_path, "--redis-url", valkey_url)
    assert text.code == 3
    assert text.out.count("do: ") == len(wrong)


def test_doctor_looks_at_what_it_can_reach(tmp_path: Path) -> None:
    """Without a running system, or with a server that does not answer: store and log root are looked at as well."""
    (tmp_path / "sessions").mkdir()
    idle = feedback("doctor", "--data", tmp_path, "--json")
    gone = feedback("doctor", "--data", tmp_path, "--redis-url", "redis://127.0.0.1:1", "--json")
    for answer, action in ((idle, f"`feedback up --data {tmp_path}`"), (gone, "check --redis-url")):
        assert (answer.code, answer.err) == (3, "")
        findings = {finding["check"]: finding for finding in answer.document["findings"]}
        assert list(findings) == ["server", "store", "Session logs"]
        assert action in findings["server"]["action"]
        assert findings["Session logs"]["ok"] is True


def test_more_workers_share_the_partitions_and_leave_in_order(up: Up, session: str) -> None:
    """`feedback worker --data DIR` joins with the running system's settings; SIGTERM hands its share back."""
    joined = subprocess.Popen([FEEDBACK, "worker", "--data", up.data], env=environment(), stderr=subprocess.PIPE)
    with joined:
        wait_until(lambda: shares(up) == [16, 16], "each has half")
        assert up.feedback("put", session, "a1", "positive").code == 0
        joined.send_signal(signal.SIGTERM)
        assert joined.wait(30) == 0
        assert joined.stderr is not None
        assert b'event="worker stopped"' in joined.stderr.read()
        wait_until(lambda: shares(up) == [32], "the first has all again")


def shares(up: Up) -> list[int]:
    owners = [one["owner"] for one in up.feedback("status", "--json").document["partitions"]]
    return sorted(owners.count(owner) for owner in set(owners) - {None})


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    """`feedback sessions | head` ends in silence, and not with the exit code of a business failure."""
    for number in range(40):
        with LogWriter(tmp_path / "sessions", f"s{number:03}", created_at=1, cwd=None) as log:
            log.append(exchange(1, "?", "!" * 190, user_id="q", assistant_id="a"))
    command = (FEEDBACK, "sessions", "--data", str(tmp_path))
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (3, b"")


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is named and explains itself; `--help` exits with 0."""
    commands = ("up", "worker", "projector", "put", "delete", "list", "sessions", "status", "rebuild", "doctor")
    overview = feedback("--help")
    assert (overview.code, overview.err) == (0, "")
    bare = feedback()
    assert (bare.code, bare.out, bare.err) == (2, "", overview.out)
    for command in commands:
        assert f"\n    {command}" in overview.out
        parser, group = parser_for([command])
        assert group is not None
        with pytest.raises(SystemExit) as end:
            parser.parse_args([command, "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert f"usage: feedback {command}" in text
        assert "--json" in text
