"""What a host hands to `LiveSessions`: what a flush returns or raises, and what is registered."""

import pytest

from feedback.errors import InvalidRequest
from feedback.live_requests import Outcome, check_max_flushes, check_registration, counted, raised
from feedback.model import SessionIdentity

LIFE = SessionIdentity(created_at=1, cwd="/w")


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (None, Outcome("flushed")),
        (0, Outcome("flushed", 0)),
        (2**63 - 1, Outcome("flushed", 2**63 - 1)),
        (2**63, "int"),
        (-1, "int"),
        (True, "bool"),
        (1.0, "float"),
        ("1", "str"),
    ],
)
def test_what_a_flush_may_return(value: object, outcome: Outcome | str) -> None:
    """A count or None; anything else is the host's mistake, and no flush."""
    if isinstance(outcome, str):
        outcome = Outcome("failed", reason=f"flush returned {outcome}: neither a count of events nor None")
    assert counted(value) == outcome


def test_what_a_flush_raised_is_said_in_a_form_that_the_wire_takes() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no message")

    assert raised(OSError("disk full")).reason == "OSError: disk full"
    assert raised(ValueError("a\ud800b")).reason == "ValueError: a\\ud800b"
    assert raised(Broken()).reason == "Broken: (it has no message)"
    assert len(raised(ValueError("x" * 10_000)).reason) == 500


@pytest.mark.parametrize(
    ("session_id", "identity", "path"),
    [
        (7, LIFE, "$.sessionId"),
        ("\ud800", LIFE, "$.sessionId"),
        ("s", SessionIdentity(created_at=1.5), "$.createdAt"),  # type: ignore[arg-type]  # that is the mistake
        ("s", SessionIdentity(created_at=True), "$.createdAt"),
        ("s", SessionIdentity(created_at=-1), "$.createdAt"),
        ("s", SessionIdentity(created_at=2**53), "$.createdAt"),
        ("s", SessionIdentity(created_at=1, cwd="\ud800"), "$.cwd"),
    ],
)
def test_what_has_no_form_on_the_wire_is_refused(session_id: object, identity: SessionIdentity, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_registration(session_id, identity)
    assert refused.value.path == path


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "4", None])
def test_at_least_one_session_is_flushed_at_once(count: object) -> None:
    assert check_max_flushes(1) == 1
    with pytest.raises(InvalidRequest):
        check_max_flushes(count)
