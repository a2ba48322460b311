"""Events: to the letter, through the wire, and the answer that follows from each."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.events import (
    Event,
    FeedbackDeleted,
    FeedbackPut,
    FeedbackRejected,
    FeedbackUnchanged,
    decode_event,
    encode_event,
    result_of,
)
from feedback.model import Item, SessionIdentity
from feedback.results import Absent, Ok, Rejected, Rejection, Result, TargetNotFound, VersionConflict

ITEM = Item(message_id="m", rating="positive", note="n", version="v", created_at=1, updated_at=2)
BASE: dict[str, Any] = {
    "event_id": "1-2-3",
    "command_id": "c",
    "session_id": "s",
    "session": SessionIdentity(created_at=5, cwd="/w"),
    "revision": 4,
    "message_id": "m",
    "actor": "a",
    "occurred_at": 6,
    "partition": 2,
    "epoch": 9,
}
HEAD = '"eventId":"1-2-3","commandId":"c","sessionId":"s","session":{"createdAt":5,"cwd":"/w"},"revision":4,'
TAIL = '"messageId":"m","actor":"a","occurredAt":6,"partition":2,"epoch":9'
ITEM_JSON = '{"messageId":"m","rating":"positive","note":"n","version":"v","createdAt":1,"updatedAt":2}'
CONFLICT = VersionConflict(current=None)

LETTERS: list[tuple[Event, str, Result]] = [
    (FeedbackPut(**BASE, item=ITEM), f'{{"type":"feedback.put",{HEAD}{TAIL},"item":{ITEM_JSON}}}', Ok(value=ITEM)),
    (FeedbackDeleted(**BASE), f'{{"type":"feedback.deleted",{HEAD}{TAIL}}}', Ok(value=Absent())),
    (
        FeedbackUnchanged(**BASE, item=ITEM),
        f'{{"type":"feedback.unchanged",{HEAD}{TAIL},"item":{ITEM_JSON}}}',
        Ok(value=ITEM),
    ),
    (FeedbackUnchanged(**BASE), f'{{"type":"feedback.unchanged",{HEAD}{TAIL}}}', Ok(value=Absent())),
    (
        FeedbackRejected(**BASE, error=CONFLICT),
        f'{{"type":"feedback.rejected",{HEAD}{TAIL},"error":{{"code":"version-conflict","current":null}}}}',
        Rejected(error=CONFLICT),
    ),
]
IDS = ("put", "deleted", "unchanged put", "unchanged delete", "rejected")


@pytest.mark.parametrize(("event", "letters", "result"), LETTERS, ids=IDS)
def test_an_event_has_the_contracts_members(event: Event, letters: str, result: Result) -> None:
    """Names and order; it comes back equal."""
    assert msgspec.json.encode(event).decode() == letters
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(("event", "letters", "result"), LETTERS, ids=IDS)
def test_the_answer_follows_from_the_event(event: Event, letters: str, result: Result) -> None:
    """With the Session's revision, which is no member of it."""
    answer = result_of(event)
    assert answer == result
    assert answer.revision == 4
    assert "revision" not in msgspec.to_builtins(answer)


def test_members_without_a_value_are_absent() -> None:
    """No identity where there is no Session, no `cwd` where the header has none, no actor."""
    error: Rejection = TargetNotFound(session_id="s", message_id="m")
    bare = FeedbackRejected(**(BASE | {"session": None, "actor": None, "revision": 0}), error=error)
    members = msgspec.to_builtins(bare)
    assert members.keys() == {
        *("type", "eventId", "commandId", "sessionId", "revision"),
        *("messageId", "occurredAt", "partition", "epoch", "error"),
    }
    assert decode_event(encode_event(bare)) == bare
    assert msgspec.to_builtins(SessionIdentity(created_at=0)) == {"createdAt": 0}


def test_a_later_programs_member_is_passed_over() -> None:
    """Consumers are upgraded one by one: an event may say more than they know."""
    event = FeedbackDeleted(**BASE)
    more = msgspec.msgpack.encode(msgspec.to_builtins(event) | {"later": {"a": [1]}})
    assert decode_event(more) == event


def test_a_later_programs_meaning_is_not_read() -> None:
    """Another schema says that the members mean something else; the one of today is not spelled out."""
    event = FeedbackDeleted(**BASE)
    members = msgspec.to_builtins(event)
    assert "schema" not in members
    assert decode_event(msgspec.msgpack.encode(members | {"schema": 1})) == event
    with pytest.raises(msgspec.ValidationError):
        decode_event(msgspec.msgpack.encode(members | {"schema": 2}))


@pytest.mark.parametrize("name", ["type", "eventId", "commandId", "sessionId", "revision", "messageId", "item"])
def test_an_event_without_a_required_member_is_none(name: str) -> None:
    """Nothing is made up."""
    members = msgspec.to_builtins(FeedbackPut(**BASE, item=ITEM))
    del members[name]
    with pytest.raises(msgspec.ValidationError):
        decode_event(msgspec.msgpack.encode(members))


@given(st.binary())
def test_garbage_is_no_event(data: bytes) -> None:
    """Only msgspec's errors."""
    with pytest.raises(msgspec.MsgspecError):
        decode_event(data)


@pytest.mark.parametrize("deep", [b"\x91" * 100_000, b"\x81\xa5later" + b"\x91" * 100_000], ids=["bare", "member"])
def test_deep_nesting_is_no_event(deep: bytes) -> None:
    """Also inside a member that would be passed over."""
    with pytest.raises(msgspec.MsgspecError):
        decode_event(deep)
