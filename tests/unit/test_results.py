"""Results and failures: the contract's JSON to the letter, and the same value again on the other side of the wire."""

import contextlib
import inspect
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback import errors
from feedback.errors import Disposition, FeedbackError
from feedback.failures import Failure, decode_failure, encode_failure, error_of, failure_of
from feedback.model import Item
from feedback.results import (
    Absent,
    ItemList,
    NoteBlank,
    NoteTooLarge,
    Ok,
    Rejected,
    Result,
    SessionNotFound,
    TargetNotFound,
    VersionConflict,
    at_revision,
    result_from_builtins,
)
from feedback.wire import decode_result, encode_result

NOTED = Item(message_id="m1", rating="positive", note="n", version="v1", created_at=1, updated_at=2)
PLAIN = Item(message_id="m2", rating="negative", version="v2", created_at=3, updated_at=3)
NOTED_JSON = '{"messageId":"m1","rating":"positive","note":"n","version":"v1","createdAt":1,"updatedAt":2}'
PLAIN_JSON = '{"messageId":"m2","rating":"negative","version":"v2","createdAt":3,"updatedAt":3}'

LETTERS: list[tuple[Result, str]] = [
    (Ok(value=NOTED), f'{{"ok":true,"value":{NOTED_JSON}}}'),
    (Ok(value=PLAIN), f'{{"ok":true,"value":{PLAIN_JSON}}}'),
    (Ok(value=Absent()), '{"ok":true,"value":{"absent":true}}'),
    (Ok(value=ItemList(items=())), '{"ok":true,"value":{"items":[]}}'),
    (Ok(value=ItemList(items=(PLAIN, NOTED))), f'{{"ok":true,"value":{{"items":[{PLAIN_JSON},{NOTED_JSON}]}}}}'),
    (
        Rejected(error=SessionNotFound(session_id="s")),
        '{"ok":false,"error":{"code":"session-not-found","sessionId":"s"}}',
    ),
    (
        Rejected(error=TargetNotFound(session_id="s", message_id="m")),
        '{"ok":false,"error":{"code":"target-not-found","sessionId":"s","messageId":"m"}}',
    ),
    (
        Rejected(error=VersionConflict(current=PLAIN)),
        f'{{"ok":false,"error":{{"code":"version-conflict","current":{PLAIN_JSON}}}}}',
    ),
    (
        Rejected(error=VersionConflict(current=None)),
        '{"ok":false,"error":{"code":"version-conflict","current":null}}',
    ),
    (Rejected(error=NoteBlank()), '{"ok":false,"error":{"code":"note-blank"}}'),
    (
        Rejected(error=NoteTooLarge(max_bytes=3, actual_bytes=4)),
        '{"ok":false,"error":{"code":"note-too-large","maxBytes":3,"actualBytes":4}}',
    ),
]


@pytest.mark.parametrize(("result", "letters"), LETTERS, ids=range(len(LETTERS)))
def test_a_result_is_the_contracts_json(result: Result, letters: str) -> None:
    """Member names, their order, `note` absent, `current` null; and no revision, which is not the contract's."""
    assert msgspec.json.encode(at_revision(result, 7)).decode() == letters
    assert result.ok is isinstance(result, Ok)


@pytest.mark.parametrize(("result", "letters"), LETTERS, ids=range(len(LETTERS)))
def test_a_result_comes_back_equal(result: Result, letters: str) -> None:
    """Through a result stream, through plain members, and through JSON."""
    assert decode_result(encode_result(result)) == result
    assert result_from_builtins(msgspec.to_builtins(result)) == result
    assert result_from_builtins(msgspec.json.decode(letters)) == result


def test_results_are_equal_by_what_they_say() -> None:
    """The revision is where they were said."""
    assert at_revision(Ok(value=Absent()), 1) == at_revision(Ok(value=Absent()), 2) == Ok(value=Absent())
    assert Ok(value=NOTED) != Ok(value=PLAIN)
    assert Ok(value=Absent()).revision is None
    assert at_revision(Ok(value=Absent()), 3).revision == 3


texts = st.text(st.characters(exclude_categories=["Cs"]))
times = st.integers(0, 2**53 - 1)
items = st.builds(
    Item,
    message_id=texts,
    rating=st.sampled_from(["positive", "negative"]),
    note=st.none() | texts,
    version=texts,
    created_at=times,
    updated_at=times,
)
rejections = st.one_of(
    st.builds(SessionNotFound, session_id=texts),
    st.builds(TargetNotFound, session_id=texts, message_id=texts),
    st.builds(VersionConflict, current=st.none() | items),
    st.just(NoteBlank()),
    st.builds(NoteTooLarge, max_bytes=times, actual_bytes=times),
)
results = st.one_of(
    st.builds(Rejected, error=rejections),
    st.builds(Ok, value=st.one_of(items, st.just(Absent()), st.builds(ItemList, items=st.lists(items).map(tuple)))),
)


@given(results)
def test_every_result_comes_back_equal(result: Result) -> None:
    """Whatever text and times it holds; and an absent note stays absent."""
    assert decode_result(encode_result(result)) == result
    assert b'"note":null' not in msgspec.json.encode(result)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "ok",
        {},
        {"ok": True},
        {"ok": 1, "value": {"absent": True}},
        {"ok": "true", "value": {"absent": True}},
        {"value": {"absent": True}},
        {"ok": True, "value": {"absent": False}},
        {"ok": True, "value": {"items": [{}]}},
        {"ok": True, "value": None},
        {"ok": False},
        {"ok": False, "error": {"code": "unheard-of"}},
        {"ok": False, "error": {"code": "version-conflict"}},
        {"ok": False, "value": {"absent": True}},
    ],
    ids=range(15),
)
def test_what_is_no_result_is_refused(document: Any) -> None:
    """A `ValidationError`, never a half-made result."""
    with pytest.raises(msgspec.ValidationError):
        result_from_builtins(document)


# CONTRACT, "What this system adds": failure, class. Those below the line are this program's own.
CLASSES = {
    "LogCorrupt": Disposition.FINAL,
    "LogFormatUnsupported": Disposition.FINAL,
    "LogAmbiguous": Disposition.FINAL,
    "RowInvalid": Disposition.FINAL,
    "LogUnreadable": Disposition.RETRYABLE,
    "FlushUnanswered": Disposition.RETRYABLE,
    "FlushFailed": Disposition.RETRYABLE,
    "StoreUnavailable": Disposition.RETRYABLE,
    "QueueUnavailable": Disposition.RETRYABLE,
    "Fenced": Disposition.INTERNAL,
    "InvalidRequest": Disposition.FINAL,
    "CommandIdReused": Disposition.FINAL,
    "CommandExpired": Disposition.FINAL,
    "ShuttingDown": Disposition.FINAL,
    # ---
    "AgentUnanswered": Disposition.RETRYABLE,
    "CommandFailed": Disposition.FINAL,
    "CommandUnknown": Disposition.FINAL,
    "HostUnknown": Disposition.FINAL,
    "LogFailure": Disposition.FINAL,
    "LogOwned": Disposition.RETRYABLE,
    "MediumInvalid": Disposition.FINAL,
    "MediumUnavailable": Disposition.RETRYABLE,
    "MigrationFailed": Disposition.FINAL,
    "ProcessEnded": Disposition.FINAL,
    "QueueFull": Disposition.RETRYABLE,
    "ResultTimeout": Disposition.RETRYABLE,
    "SettingsInvalid": Disposition.FINAL,
    "StoreForeign": Disposition.FINAL,
    "StoreMoved": Disposition.FINAL,
}

KINDS: dict[str, type[FeedbackError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, FeedbackError) and kind is not FeedbackError
}


def test_every_failure_has_the_contracts_class() -> None:
    """And none is missing from this list."""
    assert {name: kind.disposition for name, kind in KINDS.items()} == CLASSES


def example(kind: type[FeedbackError]) -> FeedbackError:
    if kind.__init__ is Exception.__init__:
        return kind("what happened")
    values = {"seconds": 1.5, "version": 7}
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    return kind(*(values.get(name, f"the {name}") for name in names))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_failure_comes_back_typed(kind: type[FeedbackError]) -> None:
    """Class, code, sentence and members survive the wire."""
    error = example(kind)
    again = error_of(decode_failure(encode_failure(failure_of(error))))
    assert type(again) is kind
    assert (str(again), again.code, again.disposition) == (str(error), kind.__name__, kind.disposition)
    assert vars(again) == vars(error)


def test_a_foreign_exception_becomes_command_failed() -> None:
    """With its own name in front; what it holds inside stays there."""
    error = KeyError("k")
    error.add_note("a secret")
    failure = failure_of(error)
    assert failure == Failure("KeyError", "'k'", {})
    again = error_of(failure)
    assert type(again) is errors.CommandFailed
    assert str(again) == "KeyError: 'k'"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_wire_sets_what_a_failure_declares_and_nothing_else(kind: type[FeedbackError]) -> None:
    """Whoever writes to the server makes no error look retryable, and gives no member another type."""
    names = [
        "disposition",
        "code",
        "add_note",
        "__class__",
        "__notes__",
        "with_traceback",
        "extra",
        *vars(example(kind)),
    ]
    error = error_of(Failure(kind.__name__, "x", dict.fromkeys(names, False)))
    assert (type(error), str(error), error.disposition, error.code) == (kind, "x", kind.disposition, kind.__name__)
    empty = {name: type(value)() for name, value in vars(example(kind)).items()}
    assert vars(error) == empty | ({"version": False} if "version" in empty else {})
    assert vars(error_of(Failure(kind.__name__, "x"))) == empty | ({"version": None} if "version" in empty else {})


@pytest.mark.parametrize("code", ["", "FeedbackError", "Exception", "__import__", "Disposition", "UnheardOf"])
def test_a_name_that_is_no_failure_makes_nothing(code: str) -> None:
    """Only the listed classes are ever built from the wire."""
    assert type(error_of(Failure(code, "x", {"path": "y"}))) is errors.CommandFailed


def test_any_failure_can_be_sent() -> None:
    """Paths that are no UTF-8, versions of any size and shape: the sentence is kept as far as it goes."""
    path = b"/logs/\xff".decode("utf-8", "surrogateescape")
    again = error_of(decode_failure(encode_failure(failure_of(errors.LogUnreadable("s", path, "EIO")))))
    assert isinstance(again, errors.LogUnreadable)
    assert again.path == "/logs/\\udcff"
    assert str(again) == "Session 's': EIO (/logs/\\udcff)"
    for version in (2**63 - 1, 2**64, -(10**300), 1.5, math.inf, None, True, "9", [1, {"a": "\ud800"}], b"x"):
        sent = errors.LogFormatUnsupported("s", "p", version)
        kept = error_of(decode_failure(encode_failure(failure_of(sent))))
        assert isinstance(kept, errors.LogFormatUnsupported)
        assert "not supported" in str(kept)
        if version in (2**63 - 1, 1.5, math.inf, None, True, "9"):
            assert kept.version == version


@given(st.binary())
def test_garbage_is_no_failure(data: bytes) -> None:
    """Only msgspec's errors, which the client turns into `CommandFailed`."""
    with contextlib.suppress(msgspec.MsgspecError):
        decode_failure(data)
