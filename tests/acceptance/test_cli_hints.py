"""What a command says when it cannot do what was asked: the flag, the path, and what to do next."""

from pathlib import Path

import msgspec
import pytest
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.cli.dispatch import explained
from app.cli.up import whom_it_lets_in
from feedback.errors import FeedbackError, QueueUnavailable, ResultTimeout
from tests.acceptance.command_line import feedback
from tests.harness import settings_for

pytestmark = pytest.mark.process


def unavailable(cause: RedisError) -> QueueUnavailable:
    error = QueueUnavailable(f"Redis: {cause}")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "D", "list", "s"), "--data: options go behind the command"),
        (("--json",), "--json: options go behind the command"),
        (("dlq",), "required: list|show|retry|drop"),
        (("token",), "required: create|list|revoke"),
        (("migrate", "--from", "data/x.sqlite3", "--to", "sqlite:///y"), "SettingsInvalid: --from: "),
    ],
)
def test_what_was_typed_wrong_is_said_by_its_name(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    answer = feedback(*words, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("put", "s", "a1", "positive", "--nonsense"), "put"),
        (("list", "s", "--nonsense"), "list"),
        (("dlq", "--nonsense", "list"), "dlq"),
        (("dlq", "show", "the-id", "--nonsense"), "dlq show"),
    ],
)
def test_an_option_that_a_command_does_not_know_is_said_with_that_commands_usage(
    words: tuple[str, ...], command: str
) -> None:
    answer = feedback(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"usage: feedback {command} [-h]")
    assert answer.err.endswith(f"\nfeedback {command}: error: unrecognized arguments: --nonsense\n")


def test_an_output_in_a_place_that_is_not_there_names_the_place(tmp_path: Path) -> None:
    """And no file that would have been beside it."""
    (tmp_path / "data/sessions").mkdir(parents=True)
    answer = feedback("export", "--format", "jsonl", "--output", "nowhere/b.jsonl", cwd=tmp_path)
    assert (answer.code, answer.err) == (3, "MediumUnavailable: --output: nowhere is no directory\n")


def test_a_server_out_of_reach_is_said_with_what_names_it() -> None:
    """Whichever command wanted it."""
    for words in (("status",), ("dlq", "list")):
        answer = feedback(*words, "--redis-url", "redis://127.0.0.1:1/0")
        assert answer.code == 3
        assert answer.err == (
            "QueueUnavailable: Redis: Error 111 connecting to 127.0.0.1:1. Connection refused; "
            "is it running? --redis-url or FEEDBACK_REDIS_URL names it; `feedback doctor`\n"
        )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            ResultTimeout("the-id", 0.5),
            "no answer to command the-id within 0.5 s; run it again with --command-id the-id",
        ),
        (
            unavailable(RedisTimeoutError("Timeout reading from socket")),
            "Redis: Timeout reading from socket; is it run",
        ),
        (unavailable(AuthenticationError("WRONGPASS wrong password")), "Redis: WRONGPASS wrong password"),
        (unavailable(RedisConnectionError("max number of clients reached")), "Redis: max number of clients reached"),
        (QueueUnavailable("no worker has set this server up yet"), "no worker has set this server up yet"),
    ],
)
def test_only_who_does_not_answer_is_asked_whether_it_runs(error: FeedbackError, hint: str) -> None:
    """A server that refuses does; a command without an answer can be sent again by its id."""
    said = explained(error)
    assert said.startswith(hint)
    assert ("is it running?" in said) == ("is it run" in hint)


def test_up_says_whom_its_gateway_lets_in(tmp_path: Path) -> None:
    """As long as there are neither tokens nor an issuer: everybody on this machine."""
    settings = settings_for("redis://127.0.0.1:1/0", tmp_path, gateway_tokens=str(tmp_path / "tokens.json"))
    assert "everybody on this machine may rate" in whom_it_lets_in(settings)
    issuer = msgspec.structs.replace(settings, gateway_issuer="https://login.example.org")
    assert whom_it_lets_in(issuer) == ""
    assert feedback("token", "create", "ada", "--tokens", str(tmp_path / "tokens.json")).code == 0
    assert whom_it_lets_in(settings) == ""
