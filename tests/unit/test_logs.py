"""One line an event, whatever is in it: members by name, values that cannot break the line."""

import json
import logging

import pytest

from app.logs import setup_logging

_log = logging.getLogger("tests.logs")


@pytest.fixture
def root() -> logging.Logger:
    """The root logger, left as it was."""
    return logging.getLogger()


@pytest.fixture(autouse=True)
def restored(root: logging.Logger) -> object:
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before[0], before[1]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_json_lines_keep_numbers_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Members are those that the message names; the event is the rest of it."""
    setup_logging(json_lines=True)
    _log.warning("%s dropped bytes=%d reason=%s at=%s", "query", 7, 'a "b"\nc\ud800', None)
    (line,) = map(json.loads, lines(capsys))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "tests.logs",
        "event": "query dropped",
        "bytes": 7,
        "reason": 'a "b"\nc\\ud800',
        "at": None,
    }


def test_key_value_lines_quote_what_is_not_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(json_lines=False)
    _log.info("acquired partitions=%s note=%s empty=%s", "1-0,1-1", "two\nlines = one", "")
    (line,) = lines(capsys)
    assert line.endswith('event=acquired partitions=1-0,1-1 note="two\\nlines = one" empty=""')


def test_a_traceback_is_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(json_lines=True)
    try:
        int("why")
    except ValueError:
        _log.exception("failed")
    (line,) = map(json.loads, lines(capsys))
    assert "ValueError: invalid literal" in line["traceback"]


def test_a_message_without_members_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(json_lines=False)
    _log.info("worker started")
    _log.debug("not shown")
    (line,) = lines(capsys)
    assert line.endswith('level=info logger=tests.logs event="worker started"')
