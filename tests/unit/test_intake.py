"""Which queries are answered: not those of who has gone, as far as that can be told from clocks that may differ."""

from collections import Counter

from feedback.queries import ListQuery, encode_query
from projections.intake import Intake
from projections.meter import Meter

_NOW_MS = 1_000_000


class Counting(Meter):
    def __init__(self) -> None:
        self.counts = Counter[str]()

    def dropped(self, reason: str, count: int) -> None:
        self.counts[reason] += count


class Taking:
    """An intake, and the clock that it goes by."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.meter = Counting()
        self._intake = Intake(self.meter, clock=lambda: self.now_s, wall_ms=lambda: _NOW_MS)

    def answered(self, *late_s: float, are_all: bool) -> list[float]:
        """Of questions that are so many seconds late: those that are answered."""
        documents = [
            encode_query(ListQuery(query_id=str(late), deadline=_NOW_MS - int(1000 * late), session_id="s"))
            for late in late_s
        ]
        queries, unknown = self._intake.read(documents, are_all=are_all)
        assert unknown == []
        return [float(query.query_id) for query in queries]


def test_clocks_may_differ_by_a_minute() -> None:
    """Where nobody waits behind it, answering a late question costs nobody anything; past a minute it is counted."""
    taking = Taking()
    assert taking.answered(-5, 0, 4, 59.9, 60, 7200, are_all=True) == [-5, 0, 4, 59.9]
    assert taking.meter.counts == {"overdue": 2}


def test_questions_that_waited_for_too_long_make_room() -> None:
    """Else a projector that is behind would stay so, answering only those who have gone. Who is later than anybody
    can have waited has another clock."""
    taking = Taking()
    assert taking.answered(-1, 0, 4, are_all=False) == [-1], "how long they waited before it started is not known"
    assert taking.answered(are_all=True) == []
    taking.now_s += 3
    assert taking.answered(-1, 0, 2.9, 3, 4, 60, are_all=False) == [-1, 3, 4]
    taking.now_s += 3
    assert taking.answered(-1, 3, 4, 6, are_all=False) == [-1, 6]
    assert taking.answered(3, 4, are_all=True) == [3, 4]
    assert taking.meter.counts == {"overdue": 7}
