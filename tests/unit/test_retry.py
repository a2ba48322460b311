"""Backoff: it grows, it is capped, and jitter spreads it without ever making it vanish."""

from hypothesis import given
from hypothesis import strategies as st

from worker.core.retry import CAP_S, FIRST_S, delay

jitters = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 10**9), jitters)
def test_a_delay_lies_in_the_upper_half(attempt: int, jitter: float) -> None:
    """Between half and all of what the attempt is worth; never past the cap, never nothing, at any attempt."""
    full = min(CAP_S, FIRST_S * 2.0 ** min(attempt - 1, 60))
    assert full / 2 <= delay(attempt, jitter) <= full <= CAP_S


@given(st.integers(1, 100), jitters)
def test_delays_grow_to_the_cap(attempt: int, jitter: float) -> None:
    """With the same jitter, twice as long each time."""
    this, following = delay(attempt, jitter), delay(attempt + 1, jitter)
    assert this <= following <= 2 * this
    assert following == 2 * this or following >= CAP_S / 2


def test_first_and_last_delay() -> None:
    """From a blink to half a minute; both can be given."""
    assert delay(1, 0.0) == FIRST_S / 2
    assert delay(10**6, 0.0) == CAP_S / 2
    assert delay(1, 0.5, first_s=4.0) == 3.0
    assert delay(100, 0.0, cap_s=2.0) == 1.0
