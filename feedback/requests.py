"""What callers ask for, checked at the boundary (CONTRACT, "Requests").

`Put` and `Delete` are the requests of the Python client. `parse_request` checks a JSON
document from elsewhere against the contract's closed shapes.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NoReturn, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct

from feedback.errors import InvalidRequest
from feedback.model import Rating

MAX_ACTOR_BYTES = 256

_MOST_SECONDS = sys.float_info.max
_MOST_SAID = 200

_MAPPINGS = (dict, Mapping)
"""Nearly always the first, which is told at once."""

ExpiresAt: TypeAlias = int | datetime | None
"""A deadline: milliseconds since the Unix epoch or an aware datetime; None for the default of 24 hours."""


class Put(Struct, frozen=True, rename="camel"):
    """Rate one message. `if_version` is the current item's version, or None for "create only".

    `command_id` (a UUID) makes the put safe to send again; one is made when it is left out.
    `expires_at` is a deadline in milliseconds since the Unix epoch (or an aware datetime).
    """

    session_id: str
    message_id: str
    rating: Rating
    note: str | None = None
    if_version: str | None = None
    actor: str | None = None
    command_id: str | UUID | None = None
    expires_at: ExpiresAt = None


class Delete(Struct, frozen=True, rename="camel"):
    """Remove the feedback on one message; `if_version` as in `Put`."""

    session_id: str
    message_id: str
    if_version: str | None = None
    actor: str | None = None
    command_id: str | UUID | None = None
    expires_at: ExpiresAt = None


Request: TypeAlias = Put | Delete


class ListRequest(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The contract's closed `list` request."""

    session_id: str


class PutRequest(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The contract's closed `put` request: `ifVersion` cannot be left out."""

    session_id: str
    message_id: str
    rating: Rating
    if_version: str | None
    note: str | msgspec.UnsetType = msgspec.UNSET


class DeleteRequest(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The contract's closed `delete` request."""

    session_id: str
    message_id: str
    if_version: str | None


_SHAPES: dict[str, type[ListRequest] | type[PutRequest] | type[DeleteRequest]] = {
    "list": ListRequest,
    "put": PutRequest,
    "delete": DeleteRequest,
}


def parse_request(
    operation: Literal["list", "put", "delete"], document: bytes | str | Mapping[str, Any]
) -> Put | Delete | ListRequest:
    """Check a request that arrived as JSON (text, or already parsed) against its closed shape.

    Raises:
        InvalidRequest: not JSON, a duplicate key, NaN, an unknown or missing member, a wrong type, a lone surrogate.
    """
    members = parse_json(document) if isinstance(document, bytes | str) else document
    check_members(members)
    try:
        request = msgspec.convert(members, _SHAPES[operation])
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    if isinstance(request, PutRequest):
        note = None if request.note is msgspec.UNSET else request.note
        return Put(request.session_id, request.message_id, request.rating, note, request.if_version)
    if isinstance(request, DeleteRequest):
        return Delete(request.session_id, request.message_id, request.if_version)
    return request


def check_members(members: object) -> None:
    """Refuse lone surrogates in the names and values of an object's members, before anything has to encode them."""
    if not isinstance(members, _MAPPINGS):
        return
    for name, value in members.items():
        # As `check_text` does, which is not called for what is plain: this runs for every command.
        if isinstance(name, str) and not name.isascii():
            check_text("$", name)
        if isinstance(value, str) and not value.isascii():
            check_text(f"$.{name}", value)


def check_text(path: str, value: object) -> None:
    """Refuse a string that is not well-formed Unicode: it has no UTF-8 form to store or hash."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(path, f"not well-formed Unicode: lone surrogate at {error.start}") from None


def check_timeout(seconds: object) -> float:
    """A timeout in seconds: a finite number, not negative."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRequest("timeout", f"expected seconds as a number, got {type(seconds).__name__}")
    if not 0 <= seconds <= _MOST_SECONDS:
        raise InvalidRequest("timeout", "must be a finite number of seconds, 0 or more")
    return float(seconds)


def invalid(error: msgspec.ValidationError) -> InvalidRequest:
    """msgspec's message as path and reason (it ends in "- at `$.path`"), cut where a hostile name makes it long."""
    reason, marker, path = str(error).rpartition(" - at `")
    if not marker:
        reason, path = str(error), "$"
    return InvalidRequest(path.replace("`", "")[:_MOST_SAID], reason[:_MOST_SAID])


def parse_json(document: bytes | str) -> Any:
    """Strict JSON: UTF-8, no member twice, no NaN or Infinity.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        # JSON between systems is UTF-8 without a byte order mark (RFC 8259, 8.1); `json.loads` would guess.
        text = document.decode() if isinstance(document, bytes) else document
        return json.loads(text, object_pairs_hook=_unique_members, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("$", f"not JSON: {error}") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        check_text("$", repeated)
        raise InvalidRequest(f"$.{repeated}"[:_MOST_SAID], "the member occurs twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest("$", f"{name} is not JSON")
