"""Business results: the contract's union, as values (CONTRACT, "Results").

`msgspec.json.encode(result)` is the contract's JSON to the letter.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from feedback.model import Item


class Absent(Struct, frozen=True):
    """A delete's success: the message has no feedback now."""

    absent: Literal[True] = True


class ItemList(Struct, frozen=True):
    """A list's success: items in order of first creation."""

    items: tuple[Item, ...]


class SessionNotFound(Struct, frozen=True, kw_only=True, rename="camel", tag_field="code", tag="session-not-found"):
    """No readable log in the catalog and no live owner."""

    session_id: str


class TargetNotFound(Struct, frozen=True, kw_only=True, rename="camel", tag_field="code", tag="target-not-found"):
    """No assistant message of append origin with content bears that id."""

    session_id: str
    message_id: str


class VersionConflict(Struct, frozen=True, kw_only=True, rename="camel", tag_field="code", tag="version-conflict"):
    """`ifVersion` is not the current item's version; `current` is that item, or None when there is none."""

    current: Item | None


class NoteBlank(Struct, frozen=True, tag_field="code", tag="note-blank"):
    """The note holds nothing but ECMAScript white space."""


class NoteTooLarge(Struct, frozen=True, kw_only=True, rename="camel", tag_field="code", tag="note-too-large"):
    """The note has more UTF-8 bytes than the deployment allows."""

    max_bytes: int
    actual_bytes: int


Rejection: TypeAlias = SessionNotFound | TargetNotFound | VersionConflict | NoteBlank | NoteTooLarge
Value: TypeAlias = Item | Absent | ItemList


class _Positioned(Struct, frozen=True, dict=True):
    """A result that knows the Session's revision, which is no member of the contract's JSON."""

    @property
    def revision(self) -> int | None:
        """The Session's revision after this operation: pass it to `list(at_least=…)` to read one's own write.

        None when the operation never reached a Session (a note refused at the boundary).
        """
        revision: int | None = self.__dict__.get("revision")
        return revision


class Ok(_Positioned, frozen=True, kw_only=True, dict=True):
    """The operation succeeded."""

    ok: Literal[True] = True
    value: Value


class Rejected(_Positioned, frozen=True, kw_only=True, dict=True):
    """The operation was refused for a business reason; nothing changed."""

    ok: Literal[False] = False
    error: Rejection


Result: TypeAlias = Ok | Rejected


def at_revision(result: Result, revision: int | None) -> Result:
    """The same result, carrying the Session's revision."""
    result.__dict__["revision"] = revision
    return result


class _RejectedWire(Struct, frozen=True):
    error: Rejection


class _ItemWire(Struct, frozen=True):
    value: Item


class _AbsentWire(Struct, frozen=True):
    value: Absent


class _ListWire(Struct, frozen=True):
    value: ItemList


def result_from_builtins(document: Any) -> Result:
    """Rebuild a result from its plain members.

    Raises:
        msgspec.ValidationError: it is not one of the contract's results.
    """
    if not isinstance(document, dict) or not isinstance(document.get("ok"), bool):
        raise msgspec.ValidationError("Expected `object` with `ok`, true or false")
    if not document["ok"]:
        return Rejected(error=msgspec.convert(document, _RejectedWire).error)
    value = document.get("value")
    if isinstance(value, dict) and "absent" in value:
        return Ok(value=msgspec.convert(document, _AbsentWire).value)
    if isinstance(value, dict) and "items" in value:
        return Ok(value=msgspec.convert(document, _ListWire).value)
    return Ok(value=msgspec.convert(document, _ItemWire).value)
