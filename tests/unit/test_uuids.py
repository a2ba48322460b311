"""UUIDs are what the standard says of their version, in the one spelling that this system takes."""

from collections.abc import Callable
from uuid import RFC_4122, UUID

import pytest

from feedback.uuids import ordered_uuid, random_uuid


@pytest.mark.parametrize(("make", "version"), [(random_uuid, 4), (ordered_uuid, 7)])
def test_a_uuid_bears_its_version_and_differs_from_all_others(make: Callable[[], str], version: int) -> None:
    made = [make() for _ in range(1000)]
    assert {(UUID(text).version, UUID(text).variant) for text in made} == {(version, RFC_4122)}
    assert [str(UUID(text)) for text in made] == made
    assert len({text[14:] for text in made}) == len(made)


def test_ordered_uuids_sort_by_the_millisecond_in_which_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """And say which that was."""
    made = []
    for milliseconds in (1, 1_790_000_000_000, 1_790_000_000_001, 2**48 - 1):
        monkeypatch.setattr("feedback.uuids.time.time_ns", lambda now=milliseconds: now * 1_000_000 + 999_999)
        made.append(ordered_uuid())
        assert UUID(made[-1]).int >> 80 == milliseconds
    assert made == sorted(made)
