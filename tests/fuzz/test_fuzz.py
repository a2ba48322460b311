"""A fixed run of the fuzzer; `make fuzz` is the long one."""

import pytest

from tests.fuzz import campaign


def test_a_thousand_damaged_logs_are_each_answered_in_their_kind() -> None:
    answers = campaign.run(seed=20261130, cases=1000)
    assert answers.total() == 1000
    assert {"sound", "torn", "LogCorrupt", "no such Session"} <= set(answers), "the damage is of many kinds"


def test_a_reader_that_invents_a_message_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.oracle.messages", lambda *_args, **_more: set[str]())
    with pytest.raises(campaign.Violation, match="not in the log"):
        campaign.run(seed=1, cases=200)
