"""Who is alive: a worker whose beat goes on changing, on the observer's own clock."""

from hypothesis import given
from hypothesis import strategies as st

from worker.core.shares import Liveness


def test_a_worker_is_alive_when_first_seen() -> None:
    """Nothing is known against it."""
    assert Liveness(5).observe({"a": 1, "b": 9}, 100.0) == {"a", "b"}
    assert Liveness(5).observe({}, 100.0) == frozenset()


def test_a_beat_that_stands_still_is_dead_after_the_ttl() -> None:
    """Whatever the server's clock makes of its key; exactly at the TTL it is over."""
    liveness = Liveness(5)
    liveness.observe({"a": 1}, 100.0)
    assert liveness.observe({"a": 1}, 104.9) == {"a"}
    assert liveness.observe({"a": 1}, 105.0) == frozenset()
    assert liveness.observe({"a": 1}, 200.0) == frozenset()


def test_a_beat_that_changes_keeps_alive() -> None:
    """Forward, or back after a restart."""
    liveness = Liveness(5)
    for now, beat in ((100.0, 8), (104.0, 9), (108.0, 2), (112.0, 1), (116.0, 7)):
        assert liveness.observe({"a": beat}, now) == {"a"}
    assert liveness.observe({"a": 7}, 121.0) == frozenset()


def test_a_dead_worker_that_beats_again_is_alive() -> None:
    """It was paused, not gone."""
    liveness = Liveness(5)
    liveness.observe({"a": 1}, 100.0)
    assert liveness.observe({"a": 1}, 110.0) == frozenset()
    assert liveness.observe({"a": 2}, 110.5) == {"a"}


def test_a_key_that_is_gone_is_a_dead_worker() -> None:
    """It left, or its lease ran out; when it comes back it counts as new."""
    liveness = Liveness(5)
    liveness.observe({"a": 1}, 100.0)
    assert liveness.observe({}, 101.0) == frozenset()
    assert liveness.observe({"a": 1}, 110.0) == {"a"}


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=30))
def test_alive_is_who_changed_within_the_ttl(looks: list[tuple[float, bool]]) -> None:
    """At every look, however often one looks."""
    liveness, now, beat, changed = Liveness(5), 0.0, 0, 0.0
    liveness.observe({"a": beat}, now)
    for seconds, beats in looks:
        now += seconds
        if beats:
            beat, changed = beat + 1, now
        assert ("a" in liveness.observe({"a": beat}, now)) == (now - changed < 5)
