"""What an agent or a projector drops is all counted, and told of seldom."""

from collections import Counter

import pytest

from feedback.dropped import Dropped, Reason


def test_a_flood_is_counted_in_full_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each reason in ten seconds, with all that came since the one before it."""
    now = [100.0]
    counts = Counter[str]()
    dropped = Dropped("agent box", lambda reason, count: counts.update({reason: count}), clock=lambda: now[0])
    for _ in range(50):
        dropped.note(Reason.OVERDUE, "1.0 s past its deadline")
    dropped.note(Reason.CROWDED, "10000 wait", 7)
    now[0] = 109.9
    dropped.note(Reason.OVERDUE, "2.0 s past its deadline")
    now[0] = 110.0
    dropped.note(Reason.OVERDUE, "3.0 s past its deadline")
    assert caplog.messages == [
        "not answered by=agent box reason=overdue count=1: 1.0 s past its deadline",
        "not answered by=agent box reason=crowded count=7: 10000 wait",
        "not answered by=agent box reason=overdue count=51: 3.0 s past its deadline",
    ]
    assert counts == {"overdue": 52, "crowded": 7}
