"""The contract's rules for one command, one test per sentence (CONTRACT, "Rules of `put`", "Rules of `delete`")."""

from typing import Any

import msgspec
import pytest

from feedback.commands import DeleteCommand, PutCommand
from feedback.model import Item, Rating, SessionIdentity
from feedback.results import NoteBlank, NoteTooLarge, SessionNotFound, TargetNotFound, VersionConflict
from tests.unit.contract_model import CORRUPT, UNREADABLE, Log, World
from worker.core.rules import Fail, Keep, Reject, Remove, Verdict, Write, decide, note_rejection

LOG = Log(SessionIdentity(created_at=1, cwd="/w"), frozenset({"m"}))
STORED = Item(message_id="m", rating="positive", note="n", version="v1", created_at=10, updated_at=20)
NOW = 30
MAX = 8


def put(rating: Rating = "positive", *, note: str | None = None, if_version: str | None = None, **more: Any) -> Any:
    command = PutCommand(
        schema=1,
        command_id="c",
        session_id="s",
        message_id="m",
        if_version=if_version,
        expires_at=0,
        rating=rating,
        note=note,
    )
    return msgspec.structs.replace(command, **more)


def delete(if_version: str | None) -> DeleteCommand:
    return DeleteCommand(schema=1, command_id="c", session_id="s", message_id="m", if_version=if_version, expires_at=0)


def verdict(command: Any, barrier: World = LOG, current: Item | None = None, now_ms: int = NOW) -> Verdict:
    return decide(command, barrier, current, now_ms=now_ms, version="fresh", max_note_bytes=MAX)


@pytest.mark.parametrize("barrier", [LOG, None, UNREADABLE, CORRUPT], ids=["log", "none", "unreadable", "corrupt"])
def test_the_note_is_checked_before_any_session_is_looked_up(barrier: World) -> None:
    """Rule 2 comes before 3, 4 and 6, and needs no log."""
    bad = put(note=" ", if_version="wrong", message_id="unknown")
    assert verdict(bad, barrier, STORED) == Reject(NoteBlank())
    large = put(note="x" * (MAX + 1), if_version="wrong", message_id="unknown")
    assert verdict(large, barrier, STORED) == Reject(NoteTooLarge(max_bytes=MAX, actual_bytes=MAX + 1))


def test_blank_is_said_before_too_large() -> None:
    """A note may be both."""
    assert verdict(put(note="\u3000" * MAX)) == Reject(NoteBlank())


def test_the_bound_on_notes_is_in_bytes() -> None:
    """At the bound is accepted; one byte more is not, and both numbers are told."""
    assert isinstance(verdict(put(note="é" * (MAX // 2))), Write)
    assert verdict(put(note="é" * (MAX // 2) + "x")) == Reject(NoteTooLarge(max_bytes=MAX, actual_bytes=MAX + 1))
    assert note_rejection(delete(None), MAX) is None
    assert note_rejection(put(), MAX) is None


def test_a_note_is_stored_to_the_letter() -> None:
    """Never trimmed, never normalised."""
    written = verdict(put(note=" e\u0301\n "))
    assert isinstance(written, Write)
    assert written.item.note == " e\u0301\n "


def test_the_session_must_exist() -> None:
    """For put and delete alike, before target and version."""
    for command in (put(message_id="unknown", if_version="wrong"), delete("wrong"), delete(None)):
        assert verdict(command, None, STORED) == Reject(SessionNotFound(session_id="s"))


def test_a_log_that_cannot_be_inspected_is_no_missing_session() -> None:
    """It is an infrastructure failure, also for a delete that would succeed anyway."""
    for command in (put(), delete(None)):
        assert verdict(command, CORRUPT) == Fail(CORRUPT)
        assert verdict(command, UNREADABLE) == Fail(UNREADABLE)


def test_the_target_must_exist() -> None:
    """Before the version is compared."""
    assert verdict(put(message_id="other", if_version="wrong"), current=STORED) == Reject(
        TargetNotFound(session_id="s", message_id="other")
    )


def test_null_means_create_only() -> None:
    """`ifVersion` null is right exactly when there is no item."""
    written = verdict(put("negative", note="n"))
    assert written == Write(
        Item(message_id="m", rating="negative", note="n", version="fresh", created_at=NOW, updated_at=NOW)
    )
    assert verdict(put("negative"), current=STORED) == Reject(VersionConflict(current=STORED))
    assert verdict(put("negative", if_version="v1")) == Reject(VersionConflict(current=None))


@pytest.mark.parametrize("if_version", [None, "v0", "V1", "v1 ", ""])
def test_another_version_conflicts_even_when_nothing_would_change(if_version: str | None) -> None:
    """Rule 6 comes before 7, and compares to the letter."""
    same = put(note="n", if_version=if_version)
    assert verdict(same, current=STORED) == Reject(VersionConflict(current=STORED))


def test_the_same_value_changes_nothing() -> None:
    """Version and times stay."""
    assert verdict(put(note="n", if_version="v1"), current=STORED) == Keep(STORED)


@pytest.mark.parametrize(("rating", "note"), [("negative", "n"), ("positive", "N"), ("positive", None)])
def test_any_difference_is_an_update(rating: Rating, note: str | None) -> None:
    """A fresh version, the first creation time; leaving the note out clears it."""
    assert verdict(put(rating, note=note, if_version="v1"), current=STORED) == Write(
        Item(message_id="m", rating=rating, note=note, version="fresh", created_at=10, updated_at=NOW)
    )


def test_an_update_never_goes_back_in_time() -> None:
    """A worker's clock may be behind another's."""
    written = verdict(put("negative", if_version="v1"), current=STORED, now_ms=5)
    assert isinstance(written, Write)
    assert (written.item.created_at, written.item.updated_at) == (10, 20)


@pytest.mark.parametrize("if_version", [None, "v1", "anything"])
def test_deleting_nothing_succeeds(if_version: str | None) -> None:
    """Whatever `ifVersion` says."""
    assert verdict(delete(if_version)) == Keep(None)


def test_a_delete_compares_too() -> None:
    """An item of another version stays; `null` is another version."""
    assert verdict(delete("v1"), current=STORED) == Remove()
    for if_version in (None, "v2"):
        assert verdict(delete(if_version), current=STORED) == Reject(VersionConflict(current=STORED))


def test_a_delete_needs_no_target() -> None:
    """Feedback on a message that the log no longer has can be removed."""
    assert verdict(delete("v1"), Log(LOG.identity, frozenset()), STORED) == Remove()
