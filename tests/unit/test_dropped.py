"""What an agent drops is all counted, and told of seldom."""

import pytest

from barrier.dropped import Dropped, Reason
from barrier.meter import Meter


class _Counting(Meter):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def dropped(self, reason: str, count: int) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count


def test_a_flood_is_counted_in_full_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each reason in ten seconds, with all that came since the one before it."""
    now = [100.0]
    meter = _Counting()
    dropped = Dropped("box", meter, clock=lambda: now[0])
    for _ in range(50):
        dropped.note(Reason.OVERDUE, "1.0 s past its deadline")
    dropped.note(Reason.CROWDED, "10000 wait", 7)
    now[0] = 109.9
    dropped.note(Reason.OVERDUE, "2.0 s past its deadline")
    now[0] = 110.0
    dropped.note(Reason.OVERDUE, "3.0 s past its deadline")
    assert caplog.messages == [
        "not answered host=box reason=overdue count=1: 1.0 s past its deadline",
        "not answered host=box reason=crowded count=7: 10000 wait",
        "not answered host=box reason=overdue count=51: 3.0 s past its deadline",
    ]
    assert meter.counts == {"overdue": 52, "crowded": 7}
