"""One Session's feedback as the original stores it: the `message_feedback` domain (FORMATS section 13). Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from feedback.commands import MAX_COMMAND_BYTES
from feedback.model import Item, SessionIdentity
from feedback.notes import is_blank, utf8_size
from persistence.session_log.jsontext import MAX_SAFE, Json, safe_integer

UNIT = "message_feedback"
TABLE = "sessions"
VERSION = 0

MAX_TEXT_BYTES = MAX_COMMAND_BYTES - 64 * 1024
"""Of an item's ids, working directory and note together, in UTF-8: what one command of this system can carry."""

MOST_LISTED = 1000
"""Of what is refused in one import or export, and of what is ignored: the rest is only counted."""

_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|00000000(?:-0000){3}-0{12}",
    re.IGNORECASE | re.ASCII,
)
_MAX_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_INDEX = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_NO_INDEX = 2**32 - 1
_SAID = 100


class Row(Struct, frozen=True):
    """A record of table `sessions`: the Session's id is its key; items in order of first creation."""

    session_id: str
    identity: SessionIdentity
    items: tuple[Item, ...]


class Refusal(Struct, frozen=True):
    """A record, or an item of one, that is not taken: where it stands, and why."""

    path: str
    reason: str


class Ignored(Struct, frozen=True):
    """What the original reads as absent, without an error: where it stands, and why."""

    path: str
    reason: str


Found: TypeAlias = Row | Refusal | Ignored
"""What a medium holds, entry by entry."""


class Wrote(Enum):
    """What became of a row that was to be written."""

    NOW = "now"
    ALREADY = "already"
    """It stands there to the letter."""


Outcome: TypeAlias = Wrote | Refusal
"""What a medium says to a row that is written to it, or about what it held before."""


class RecordInvalid(ValueError):
    """A value is no record of the domain; `path` is relative to it ("" for the record itself)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def row_of(session_id: str, record: Json) -> Row:
    """The record as a row. Members that the domain does not know are dropped; a negative zero is 0.

    Raises:
        RecordInvalid: the original refuses it, too (`invalid-record`).
    """
    members = _object("", record)
    identity = _identity(members.get("session"))
    items = members.get("items")
    if not isinstance(items, list):
        raise RecordInvalid(".items", "expected an array")
    row = Row(session_id, identity, tuple(_item(f".items[{place}]", item) for place, item in enumerate(items)))
    check_unique(row)
    return row


def found_at(path: str, key: str, record: Json) -> Row | Refusal:
    """The record at this place, or why it is none."""
    try:
        return row_of(key, record)
    except RecordInvalid as error:
        return Refusal(path + error.path, error.reason)


def check_unique(row: Row) -> None:
    """Raises `RecordInvalid` when two items have one message id, or one version (compared to the letter)."""
    for name, values in (
        ("messageId", [item.message_id for item in row.items]),
        ("version", [item.version for item in row.items]),
    ):
        first: dict[str, int] = {}
        for place, value in enumerate(values):
            if (other := first.setdefault(value, place)) != place:
                raise RecordInvalid(f".items[{place}].{name}", f"is that of items[{other}], too")


def record_of(row: Row) -> dict[str, object]:
    """The row as the original's document, members in its writer's order."""
    session: dict[str, object] = {"createdAt": row.identity.created_at}
    if row.identity.cwd is not None:
        session["cwd"] = row.identity.cwd
    return {"session": session, "items": [_document(item) for item in row.items]}


def storable(row: Row, path: str) -> tuple[Row | None, list[Refusal]]:
    """What of a valid row this system can hold (None: nothing), and what it cannot.

    Its strings are well-formed Unicode (CONTRACT, "Requests"), and no item is larger than a command could make it.
    """
    for name, text in ((" (the key)", row.session_id), (".session.cwd", row.identity.cwd or "")):
        if (reason := _not_well_formed(text)) is not None:
            return None, [Refusal(path + name, reason)]
    around = utf8_size(row.session_id) + utf8_size(row.identity.cwd or "")
    kept: list[Item] = []
    refused: list[Refusal] = []
    for place, item in enumerate(row.items):
        problem = _item_problem(item, around)
        if problem is None:
            kept.append(item)
        else:
            refused.append(Refusal(f"{path}.items[{place}]{problem[0]}", problem[1]))
    if refused:
        row = Row(row.session_id, row.identity, tuple(kept))
    return (None if refused and not kept else row), refused


def quoted(key: str) -> str:
    """A key as it stands in a path: as JSON in ASCII, cut where it is long."""
    return json.dumps(key if len(key) <= _SAID else key[:_SAID] + "…")


def key_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order in which JavaScript lists an object's: array indices first, ascending, then as given."""
    given = list(keys)
    return sorted(filter(is_index, given), key=int) + [key for key in given if not is_index(key)]


def is_index(key: str) -> bool:
    """Whether JavaScript takes this key of an object for an array index (ECMAScript, "array index")."""
    return _INDEX.fullmatch(key) is not None and int(key) < _NO_INDEX


def _identity(value: Json) -> SessionIdentity:
    session = _object(".session", value)
    cwd = session.get("cwd")
    if "cwd" in session and not isinstance(cwd, str):
        raise RecordInvalid(".session.cwd", "expected a string, or no such member")
    return SessionIdentity(
        created_at=_time(".session.createdAt", session.get("createdAt")), cwd=cwd if isinstance(cwd, str) else None
    )


def _item(path: str, value: Json) -> Item:
    item = _object(path, value)
    message_id, rating, note, version = (item.get(name) for name in ("messageId", "rating", "note", "version"))
    if not isinstance(message_id, str) or not message_id:
        raise RecordInvalid(f"{path}.messageId", "expected a string that is not empty")
    if rating not in ("positive", "negative"):
        raise RecordInvalid(f"{path}.rating", "expected positive or negative")
    if "note" in item and (not isinstance(note, str) or is_blank(note)):
        raise RecordInvalid(f"{path}.note", "expected a string that is not blank, or no such member")
    if not isinstance(version, str) or not (version == _MAX_UUID or _UUID.fullmatch(version)):
        raise RecordInvalid(f"{path}.version", "expected a UUID")
    created_at = _time(f"{path}.createdAt", item.get("createdAt"))
    updated_at = _time(f"{path}.updatedAt", item.get("updatedAt"))
    if updated_at < created_at:
        raise RecordInvalid(f"{path}.updatedAt", "is before createdAt")
    return Item(
        message_id=message_id,
        rating="positive" if rating == "positive" else "negative",
        note=note if isinstance(note, str) else None,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
    )


def _object(path: str, value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise RecordInvalid(path, "expected an object")
    return value


def _time(path: str, value: Json) -> int:
    time = safe_integer(value)
    if time is None or time < 0:
        raise RecordInvalid(path, f"expected whole milliseconds, 0 to {MAX_SAFE}")
    return time


def _document(item: Item) -> dict[str, object]:
    document: dict[str, object] = {"messageId": item.message_id, "rating": item.rating}
    if item.note is not None:
        document["note"] = item.note
    return document | {"version": item.version, "createdAt": item.created_at, "updatedAt": item.updated_at}


def _item_problem(item: Item, around: int) -> tuple[str, str] | None:
    texts: Sequence[tuple[str, str]] = ((".messageId", item.message_id), (".note", item.note or ""))
    for name, text in texts:
        if (reason := _not_well_formed(text)) is not None:
            return name, reason
    size = around + sum(utf8_size(text) for _, text in texts)
    return None if size <= MAX_TEXT_BYTES else ("", f"{size} bytes of text; at most {MAX_TEXT_BYTES} can be stored")


def _not_well_formed(text: str) -> str | None:
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"not well-formed Unicode: lone surrogate at {error.start}"
    return None
