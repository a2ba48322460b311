"""`feedback export --format jsonl|parquet` as its users run it: what it says, how it ends, and a kill in the middle."""

import fcntl
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import jsonschema_rs
import pytest

from persistence.sidecar import SqliteStore
from tests.acceptance.command_line import FEEDBACK, Answer, environment, feedback
from tests.harness import wait_until
from tests.training_logs import Ratings, conversation, identity, item, write_log

SESSIONS, GONE = 800, 100
SMALL = identity("/small")
SMALL_JSONL = ("--format", "jsonl", "--project", "/small")
PAGE = Path(__file__).parents[2] / "docs/training-export.md"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with many Sessions, each with a good and a bad answer, and some whose logs are gone, most at the end."""
    data = tmp_path_factory.mktemp("home") / "data"
    events = conversation(3, "words " * 40)
    with closing(SqliteStore(_made(data) / "sidecar.sqlite3")) as store:
        ratings = Ratings(store)
        for number in range(SESSIONS):
            write_log(data / "sessions", f"s{number}", events, of=identity())
            ratings.rate(f"s{number}", identity(), item("a3"), item("a2", "negative"), actor="ada")
        write_log(data / "sessions", "small", events, of=SMALL)
        ratings.rate("small", SMALL, item("a3"), item("a2", "negative"))
        ratings.rate("gone", SMALL, item("a1"))
        for number in range(GONE):
            ratings.rate(f"z{number:02}", identity("/gone"), item("a1"))
        ratings.commit()
    yield data


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def run(data: Path, *words: str | Path) -> Answer:
    return feedback("export", *words, "--data", data, "--redis-url", "redis://127.0.0.1:1")


def schema_on_the_page() -> str:
    """The JSON Schema that docs/training-export.md shows."""
    return PAGE.read_text(encoding="utf-8").partition("<!-- schema -->\n```json\n")[2].partition("\n```")[0]


def kill_in_the_middle(data: Path, out: Path, *words: str) -> None:
    """Starts an export and kills it behind its first checkpoint. It cannot end before: nobody reads what it says of
    the Sessions without a log, which come last, and the pipe is full before them.
    """
    command = [FEEDBACK, "export", "-o", str(out), *words, "--data", str(data)]
    unread, said = os.pipe()
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=said)
    os.close(said)
    wait_until(out.with_name(f"{out.name}.checkpoint").exists, "a checkpoint", 100)
    process.kill()
    process.wait()
    os.close(unread)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()


@pytest.mark.process
def test_killed_with_minus_nine_and_run_again_it_gives_the_same_bytes(data: Path, tmp_path: Path) -> None:
    """What stood at the checkpoint is not read again; the result is the uninterrupted export's, and says so."""
    whole = run(data, "--format", "jsonl", "-o", tmp_path / "whole", "--json").document
    out = tmp_path / "out"
    kill_in_the_middle(data, out, "--format", "jsonl")
    assert out.with_name(f"{out.name}.partial").stat().st_size > 0
    refused = run(data, "--format", "jsonl", "--rating", "positive", "-o", out)
    assert (refused.code, "--restart" in refused.err) == (2, True)
    resumed = run(data, "--format", "jsonl", "-o", out, "--json").document
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert resumed == whole | {"output": str(out), "resumed": True}
    counts = whole["records"], whole["sessions"], whole["skipped"], len(whole["skippedSessions"])
    assert counts == (2 * SESSIONS + 2, SESSIONS + 2 + GONE, 1 + GONE, 100)
    assert sorted(path.name for path in tmp_path.glob(f"{out.name}*")) == [out.name]


@pytest.mark.process
def test_records_follow_the_schema_on_the_page(data: Path, tmp_path: Path) -> None:
    """Each line of an export is valid by the JSON Schema that the documentation shows, and a filter holds."""
    out = tmp_path / "out"
    assert run(data, *SMALL_JSONL, "--rating", "negative", "--model", "example-1", "-o", out).code == 0
    validator = jsonschema_rs.validator_for(schema_on_the_page())
    (record,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    validator.validate(record)
    assert (record["session"]["sessionId"], record["answer"]["rating"]) == ("small", "negative")
    with pytest.raises(jsonschema_rs.ValidationError):
        validator.validate({"schema": "feedback-answer/1"})


@pytest.mark.process
def test_skipped_sessions_are_named_and_strict_makes_them_a_failure(data: Path, tmp_path: Path) -> None:
    """One line each on stderr; exit code 1 with --strict, 0 without, unless a log is there and cannot be read."""
    words = ("--format", "parquet", "--project", "/small", "--since", "2023-11-14", "-o", tmp_path / "out")
    lenient, strict = run(data, *words), run(data, *words, "--strict")
    assert (lenient.code, strict.code) == (0, 1)
    assert lenient.err == "skipped gone: session-not-found: there is no log of this Session\n"
    assert lenient.out.startswith("2 records in ")
    assert (tmp_path / "out").read_bytes()[:4] == b"PAR1"
    log = data / "sessions" / "--small--" / "small" / "session.jsonl"
    log.rename(tmp_path / "log")
    os.mknod(log, stat.S_IFSOCK | 0o600)  # which nobody can open
    unreadable = run(data, *words)
    (tmp_path / "log").rename(log)
    assert (unreadable.code, "skipped small: LogUnreadable: " in unreadable.err) == (1, True)
    assert unreadable.out.endswith("; 1 of these not readable now: export again when they are\n")


@pytest.mark.process
def test_what_cannot_be_exported_is_refused(data: Path, tmp_path: Path) -> None:
    """Arguments that contradict each other, places that are not there; in words."""
    for refused in (("--pairs", "--rating", "positive"), ("--until", "soon"), ("-o", tmp_path / "no/where")):
        answer = run(data, *SMALL_JSONL, "-o", tmp_path / "x", *refused)
        assert answer.code == (3 if "-o" in refused else 2)
        assert "Traceback" not in answer.err
    assert run(tmp_path, "--format", "jsonl", "-o", tmp_path / "x", "--sessions", data).code == 3


@pytest.mark.process
def test_a_terminal_sees_how_far_it_is(data: Path, tmp_path: Path) -> None:
    """The bar is on stderr, only when that is a terminal; nothing that JSON Lines do not need is loaded."""
    ours, theirs = pty.openpty()
    command = [FEEDBACK, "export", *SMALL_JSONL, "-o", str(tmp_path / "out"), "--data", str(data)]
    with subprocess.Popen(
        command, env=environment({"TERM": "xterm"}), stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
        os.close(ours)
        assert process.communicate()[0].endswith(b"skipped (no log, or one that cannot be read)\n")
    assert f"/{SESSIONS + 2 + GONE}".encode() in seen
    check = "import sys, app.cli.export_training; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
