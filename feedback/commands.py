"""Commands as they lie on the queue: complete, closed, and addressed by their idempotency key.

A command is a request that got an id and a deadline. The wire form is a msgpack map
with the members below in camelCase, told apart by `type` (docs/wire-format.md).
"""

import hashlib
import re
from datetime import datetime
from typing import Annotated, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from feedback.errors import InvalidRequest
from feedback.hosts import check_host
from feedback.model import MOST_MILLISECONDS, Rating
from feedback.requests import MAX_ACTOR_BYTES, Delete, Put, Request, check_members, invalid

SCHEMA = 1
MAX_COMMAND_BYTES = 2**20
"""Bound on one encoded command, compressed or not: what is larger is never decoded."""

MAX_TRACEPARENT = 128
"""Characters: one of version 00 has 55, later ones may have more."""

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_MILLISECONDS)]
"""Since the Unix epoch."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


class _CommandBase(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="type"):
    schema: int
    command_id: str
    session_id: str
    message_id: str
    if_version: str | None
    actor: str | None = None
    expires_at: Milliseconds
    host: str | None = None
    """Where the Session's log lies, for workers that do not see it."""
    traceparent: Annotated[str, Meta(max_length=MAX_TRACEPARENT)] | None = None
    """The trace that the command is part of (W3C Trace Context). What cannot be read as one is no trace."""


class PutCommand(_CommandBase, frozen=True, kw_only=True, tag="put", omit_defaults=True):
    """Rate one message; `expires_at` in milliseconds since the Unix epoch."""

    rating: Rating
    note: str | None = None


class DeleteCommand(_CommandBase, frozen=True, kw_only=True, tag="delete", omit_defaults=True):
    """Remove the feedback on one message."""


Command: TypeAlias = PutCommand | DeleteCommand

_DEFAULT_LIFETIME_MS = 24 * 3600 * 1000


def command_from(
    request: Request,
    *,
    now_ms: int,
    new_id: str,
    retention_ms: int,
    host: str | None = None,
    traceparent: str | None = None,
) -> Command:
    """Complete a request to a command: check every member, fill in id and deadline.

    Raises:
        InvalidRequest: a wrong type, a lone surrogate, an id that is no UUID, a deadline past the retention.
    """
    if not isinstance(request, Put | Delete):
        raise InvalidRequest("$", f"expected Put or Delete, got {type(request).__name__}")
    members = {
        "type": "put" if isinstance(request, Put) else "delete",
        "schema": SCHEMA,
        "commandId": new_id if request.command_id is None else parse_command_id(request.command_id),
        "sessionId": request.session_id,
        "messageId": request.message_id,
        "ifVersion": request.if_version,
        "actor": request.actor,
        "expiresAt": _deadline(request.expires_at, now_ms, retention_ms),
        "host": host,
        "traceparent": traceparent,
    }
    if isinstance(request, Put):
        members |= {"rating": request.rating, "note": request.note}
    return command_from_members(members)


def command_from_members(members: object) -> Command:
    """Check a command that was decoded to plain members (by RQ, or from a caller's values).

    Raises:
        InvalidRequest: with the path of the first member that is wrong.
    """
    check_members(members)
    try:
        return check_command(msgspec.convert(members, Command))
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def check_command(command: Command) -> Command:
    """What types do not say about a command whose strings are known to be well-formed.

    Raises:
        InvalidRequest: a schema this program does not know, an id that is not spelled as one, an actor too long,
            no host's name.
    """
    if command.schema != SCHEMA:
        raise InvalidRequest("$.schema", f"expected {SCHEMA}, got {command.schema}: upgrade the older side")
    if parse_command_id(command.command_id) != command.command_id:
        raise InvalidRequest("$.commandId", "expected lower case")
    if command.actor is not None and len(command.actor.encode()) > MAX_ACTOR_BYTES:
        raise InvalidRequest("$.actor", f"more than {MAX_ACTOR_BYTES} bytes")
    if command.host is not None:
        check_host("$.host", command.host)
    return command


def parse_command_id(value: object) -> str:
    """A command id in its one spelling: a lower-case UUID with dashes.

    Raises:
        InvalidRequest: it is not a UUID.
    """
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value.lower()
    got = f"{value!r:.80}" if isinstance(value, str) else type(value).__name__
    raise InvalidRequest("$.commandId", f"expected a UUID (8-4-4-4-12 hex digits), got {got}")


def digest_of(command: Command) -> bytes:
    """What makes two uses of one command id "the same payload": everything but id, schema, deadline,
    host and trace.

    The deadline stays out, so that a host may send the command again with a later one; where the log lies, so that
    it may say so only then.
    """
    rating, note = (command.rating, command.note) if isinstance(command, PutCommand) else (None, None)
    parts = (command.session_id, command.message_id, command.if_version, command.actor, rating, note)
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def _deadline(value: object, now_ms: int, retention_ms: int) -> int:
    if value is None:
        return now_ms + min(_DEFAULT_LIFETIME_MS, retention_ms)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidRequest("$.expiresAt", "a datetime without a time zone is ambiguous")
        value = int(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest("$.expiresAt", f"expected milliseconds or a datetime, got {type(value).__name__}")
    if value > now_ms + retention_ms:
        raise InvalidRequest("$.expiresAt", f"later than the command retention of {retention_ms // 1000} s allows")
    return value
