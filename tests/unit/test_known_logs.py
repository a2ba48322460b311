"""What the campaign believes of the logs that it damages is what a reader finds there."""

from pathlib import Path
from typing import get_args

import pytest

from feedback.errors import FeedbackError
from persistence.session_log import SessionLogs
from tests.chaos.known_logs import Damage, KnownLogs, LogState

SESSIONS = ("session-1", "session-2")
"""One compressed, one not."""


def found(logs: SessionLogs, session_id: str) -> LogState:
    try:
        view = logs.make_durable(session_id)
    except FeedbackError as error:
        return LogState(failure=error.code)
    return LogState() if view is None else LogState(view.identity, tuple(view.message_ids))


@pytest.mark.parametrize("how", get_args(Damage))
def test_what_is_damaged_and_mended_reads_as_it_should(tmp_path: Path, how: Damage) -> None:
    """By a reader that starts, and by one that has known the log from the beginning; in a second life, too."""
    (tmp_path / "workshop").mkdir()
    known = KnownLogs(tmp_path / "root", tmp_path / "workshop", SESSIONS)
    logs = SessionLogs(tmp_path / "root")
    for session_id in SESSIONS:
        for _ in range(2):
            sound = known.current(session_id)
            assert found(logs, session_id) == sound
            known.damage(session_id, how)
            assert known.current(session_id) != sound
            for reader in (logs, SessionLogs(tmp_path / "root")):
                assert found(reader, session_id) == known.current(session_id)
            known.mend(session_id)
            assert known.is_sound(session_id)
            assert found(logs, session_id) == sound
            known.begin_life(session_id)
            assert known.current(session_id) != sound


def test_a_state_may_be_seen_while_it_is_in_force_and_while_it_changes(tmp_path: Path) -> None:
    """Both the old and the new one, for as long as it takes."""
    (tmp_path / "workshop").mkdir()
    known = KnownLogs(tmp_path / "root", tmp_path / "workshop", SESSIONS)
    sound = known.current("session-1")
    known.damage("session-1", "taken away")
    (first, second) = known._periods["session-1"]
    assert first.begins < second.begins < first.ends
    assert known.during("session-1", first.begins, second.begins - 1e-9) == [sound]
    assert known.during("session-1", second.begins, first.ends) == [sound, LogState()]
    assert known.during("session-1", first.ends + 1e-9, first.ends + 1) == [LogState()]
    assert known.during("another", 0, 1) is None
    end = known.hinder(SESSIONS, "LogUnreadable")
    assert known.failures("session-2", first.ends + 1e3, 1e99) == {"LogUnreadable"}
    end()
    assert known.failures("session-2", first.ends + 1e3, 1e99) == set()
