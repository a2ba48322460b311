"""The surface against the original's way of keeping it: one list, spliced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.session_log.damage import Misshapen
from persistence.transcripts.surface import Surface

_ROOM = 1 << 20

# Each step: None appends; two seqs replace a span, which may name nothing.
_steps = st.lists(st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40)


@given(_steps)
def test_the_surface_is_what_splicing_a_list_gives(steps: list[tuple[int, int] | None]) -> None:
    """Order, what each replacement took off, and by whom, for any sequence of appends and (in)valid spans."""
    surface = Surface(_ROOM)
    spliced: list[int] = []
    by: dict[int, int] = {}
    for seq, step in enumerate(steps):
        if step is None:
            surface.append(seq)
            spliced.append(seq)
            continue
        start, end = step
        valid = start in spliced and end in spliced and spliced.index(start) <= spliced.index(end)
        span = slice(spliced.index(start), spliced.index(end) + 1) if valid else slice(0, 0)
        taken = spliced[span]
        assert surface.replace(seq, start, end) == taken
        if valid:
            spliced[span] = [seq]
            by |= dict.fromkeys(taken, seq)
    assert list(surface) == spliced
    assert {seq: surface.replaced_by(seq) for seq in range(len(steps)) if surface.replaced_by(seq) is not None} == by


def test_a_surface_past_its_room_is_refused() -> None:
    """Memory does not grow with what a log claims."""
    surface = Surface(4000)
    with pytest.raises(Misshapen, match="room"):
        for seq in range(101):
            surface.append(seq)
