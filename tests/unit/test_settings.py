"""Settings: three sources, one order, every error with the setting's name and where its value came from."""

import re
from pathlib import Path

import pytest

from feedback.errors import SettingsInvalid
from feedback.settings import ENV_PREFIX, Settings, load_settings, unknown_variables


def test_flags_win_over_variables_over_the_file_over_the_running_system(tmp_path: Path) -> None:
    """And what none of them names has the documented default."""
    config = tmp_path / "feedback.toml"
    config.write_text("max_note_bytes = 1\nbatch_size = 1\npartitions = 1\n")
    settings = load_settings(
        {"max_note_bytes": "3", "batch_size": None},
        {"FEEDBACK_MAX_NOTE_BYTES": "2", "FEEDBACK_BATCH_SIZE": "2", "FEEDBACK_UNKNOWN": "x"},
        config,
        defaults={"max_note_bytes": 9, "batch_size": 9, "partitions": 9, "io_threads": 9},
    )
    assert (settings.max_note_bytes, settings.batch_size, settings.partitions, settings.io_threads) == (3, 2, 1, 9)
    assert settings.lease_ttl == 5.0


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    config = tmp_path / "feedback.toml"
    config.write_text('max_note_bytes = 5\nredis_url = "rediss://ada:secret@example.org/1"\n')
    settings = load_settings({}, {"FEEDBACK_CONFIG": str(config)})
    assert settings.redis_url == "rediss://ada:secret@example.org/1"


def test_the_bound_on_notes_has_no_default() -> None:
    """The contract leaves it to the deployment; the message says how to set it."""
    with pytest.raises(SettingsInvalid, match=r"max_note_bytes: not set; give --max-note-bytes or FEEDBACK_MAX_NOTE"):
        load_settings({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_note_bytes", "0"),
        ("max_note_bytes", "1.5"),
        ("max_note_bytes", "99999999"),
        ("partitions", "-1"),
        ("partitions", "5000"),
        ("batch_size", "-1"),
        ("lease_ttl", "0.5"),
        ("lease_ttl", "nan"),
        ("shutdown_grace", "0"),
        ("shutdown_grace", "inf"),
        ("result_ttl", "1" + "0" * 30),
        ("io_threads", "many"),
        ("index_bytes", "64M"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: str) -> None:
    """From the environment as from the command line."""
    with pytest.raises(SettingsInvalid, match=name):
        load_settings({}, {"FEEDBACK_MAX_NOTE_BYTES": "8"} | {ENV_PREFIX + name.upper(): value})
    with pytest.raises(SettingsInvalid, match=name):
        load_settings({"max_note_bytes": 8} | {name: value}, {})


def test_who_asks_agents_waits_longer_than_they_wait_for_owners() -> None:
    """Or no answer that took its whole time would be heard: both values are said, and where each came from. Where no
    agent has a part in it, a long flush is nobody's business."""
    impatient: dict[str, object] = {"max_note_bytes": 8, "flush_timeout": 5}
    assert load_settings(impatient, {}).flush_timeout == 5
    said = r"agent_timeout: 5 s \(from the defaults\) must be longer than flush_timeout, 5 s \(from the command line\)"
    for name, value in (("logs", "agents"), ("host", "box")):
        asking = impatient | {name: value}
        with pytest.raises(SettingsInvalid, match=said):
            load_settings(asking, {})
        assert load_settings(asking, {"FEEDBACK_AGENT_TIMEOUT": "5.5"}).agent_timeout == 5.5


@pytest.mark.parametrize("text", ["max_note_bytes = ", "surprise = 1\nmax_note_bytes = 1", "\x00", "[redis]\nurl = 1"])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    """No TOML, a setting that does not exist, a table where none belongs."""
    config = tmp_path / "feedback.toml"
    config.write_text(text)
    with pytest.raises(SettingsInvalid):
        load_settings({"max_note_bytes": 8}, {}, config)


def test_a_file_that_cannot_be_read_is_refused_with_path_and_reason(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"none\.toml: No such file or directory"):
        load_settings({"max_note_bytes": 8}, {}, tmp_path / "none.toml")


def test_the_error_says_the_value_and_where_it_came_from(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"partitions: .* \(from the command line\)"):
        load_settings({"max_note_bytes": 8, "partitions": "x"}, {})
    with pytest.raises(SettingsInvalid, match=r"partitions: 'x': .* \(from FEEDBACK_PARTITIONS\)"):
        load_settings({"max_note_bytes": 8}, {"FEEDBACK_PARTITIONS": "x"})
    config = tmp_path / "feedback.toml"
    config.write_text("max_note_bytes = 99999999\n")
    with pytest.raises(SettingsInvalid, match=r"max_note_bytes: 99999999: .* \(from configuration file .*toml\)"):
        load_settings({}, {"FEEDBACK_CONFIG": str(config)})
    with pytest.raises(SettingsInvalid, match=r"logs: 'agent': expected one of local, agents \(from FEEDBACK_LOGS\)"):
        load_settings({"max_note_bytes": 8}, {"FEEDBACK_LOGS": "agent"})


def test_the_error_names_the_setting_that_a_file_may_mean(tmp_path: Path) -> None:
    config = tmp_path / "feedback.toml"
    config.write_text("max_note_byte = 8192\n")
    with pytest.raises(SettingsInvalid, match=r"feedback\.toml: .* 'max_note_byte'; is max_note_bytes meant\?"):
        load_settings({}, {}, config)


def test_a_server_url_of_another_scheme_is_refused_without_repeating_it() -> None:
    """It may hold a password; each scheme that there is is named, and taken."""
    for url in ("http://ada:secret@example.org", "secret", "redis:secret@example.org"):
        with pytest.raises(SettingsInvalid, match=r"redis_url: .* \(from FEEDBACK_REDIS_URL\)") as refused:
            load_settings({"max_note_bytes": 8}, {"FEEDBACK_REDIS_URL": url})
        assert "secret" not in str(refused.value)
    schemes = re.findall(r"\S+://", str(refused.value))
    assert schemes == ["redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://"]
    for scheme in schemes:
        url = f"{scheme}example.org/service"
        assert load_settings({"max_note_bytes": 8, "redis_url": url}, {}).redis_url == url


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    """As `X=${Y}` leaves it: neither a value of its own nor in the way of the file's. A flag may be empty."""
    config = tmp_path / "feedback.toml"
    config.write_text('max_note_bytes = 8\nhost = "box"\n')
    empty = {ENV_PREFIX + name.upper(): "" for name in Settings.__struct_fields__}
    assert load_settings({}, empty | {"FEEDBACK_CONFIG": str(config)}) == Settings(max_note_bytes=8, host="box")
    assert load_settings({"host": ""}, empty, config).host == ""


def test_a_misspelled_variable_is_found_with_the_one_that_may_be_meant() -> None:
    """What else begins like ours has none; other programs' variables are nobody's business."""
    found = unknown_variables({"FEEDBACK_REDIS_ULR": "x", "FEEDBACK_EMAIL": "", "FEEDBACK_HOST": "box", "PATH": "/"})
    assert found == {"FEEDBACK_EMAIL": None, "FEEDBACK_REDIS_ULR": "FEEDBACK_REDIS_URL"}


def test_no_variable_that_this_project_uses_is_unknown() -> None:
    """In programs, deployments and pages."""
    root = Path(__file__).parents[2]
    kinds = ("*.py", "*.yml", "*.md", "*.js")
    places = ("app", "barrier", "benchmarks", "deploy", "docs", "feedback", "gateway", "persistence", "worker")
    files = [root / name for name in ("README.md", "Makefile", "Dockerfile", "docker-compose.yml", ".ci/run")]
    files += [path for place in (*places, "projections") for kind in kinds for path in (root / place).rglob(kind)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    used = set(re.findall(r"(?<![A-Z_])FEEDBACK_[A-Z_]*[A-Z]", text))
    assert used >= {"FEEDBACK_CONFIG", "FEEDBACK_CRASHPOINT", "FEEDBACK_CHROMIUM", "FEEDBACK_REDIS_URL"}
    assert unknown_variables(dict.fromkeys(used, "")) == {}


def test_settings_are_frozen() -> None:
    """One struct per process; nobody changes it on the way."""
    settings = Settings(max_note_bytes=8)
    with pytest.raises(AttributeError):
        settings.max_note_bytes = 9  # type: ignore[misc]  # the point of the test
