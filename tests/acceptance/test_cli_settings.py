"""What a command says about settings, before it looks for a system."""

import json
from pathlib import Path

import pytest

from tests.acceptance.command_line import feedback

pytestmark = pytest.mark.process


def test_settings_that_are_wrong_exit_with_2(tmp_path: Path) -> None:
    """From whichever source, named with its value's origin; one JSON line on stderr, nothing on stdout."""
    (tmp_path / "f.toml").write_text('redis_url = "redis://127.0.0.1:1/0"\nlease_ttl = 0.1\n')
    for words, env, said in (
        (("worker", "--redis-url", "redis://127.0.0.1:1/0"), {}, "max_note_bytes: not set"),
        (("up", "--max-note-bytes", "0", "--data", tmp_path), {}, "(from the command line)"),
        (("up", "--data", tmp_path), {"FEEDBACK_PARTITIONS": "many"}, "(from FEEDBACK_PARTITIONS)"),
        (("up", "--data", tmp_path, "--config", tmp_path / "f.toml"), {}, f"(from configuration file {tmp_path}"),
        (("list", "s", "--config", tmp_path / "none.toml"), {}, "No such file"),
        (("up", "--data", tmp_path / "f.toml"), {}, "--data"),
    ):
        answer = feedback(*words, "--json", env=env)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
        error = json.loads(answer.err)["error"]
        assert error["code"] == "SettingsInvalid"
        assert said in error["message"]


def test_a_misspelled_variable_is_told_once_on_stderr(tmp_path: Path) -> None:
    """With the one that may be meant, and as JSON where JSON was asked for; the command does what it would anyway."""
    words, env = ("token", "list", "--data", tmp_path), {"FEEDBACK_REDIS_ULR": "redis://127.0.0.1:1/0"}
    said = "FEEDBACK_REDIS_ULR is no setting and has no effect; is FEEDBACK_REDIS_URL meant?"
    plain, as_json = feedback(*words, env=env), feedback(*words, "--json", env=env)
    assert (plain.code, plain.err) == (0, f"warning: {said}\n")
    assert as_json.document == {"tokens": []}
    assert json.loads(as_json.err) == {"warning": {"code": "VariableUnknown", "message": said}}
