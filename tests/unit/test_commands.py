"""Commands: requests that got an id and a deadline, checked once more at every boundary they cross."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import combinations
from typing import Any
from uuid import UUID

import msgspec
import pytest

from feedback.commands import (
    SCHEMA,
    Command,
    DeleteCommand,
    PutCommand,
    check_command,
    command_from,
    command_from_members,
    digest_of,
    parse_command_id,
)
from feedback.errors import InvalidRequest
from feedback.requests import MAX_ACTOR_BYTES, Delete, Put, Request

NOW = 1_790_000_000_000
DAY = 24 * 3600 * 1000
ID = "0b7d3c1e-5a52-4c1a-9a37-6f3b6c0f1d2e"
OTHER = "11111111-2222-4333-8444-555555555555"
EVERY: dict[str, Any] = {
    "session_id": "s",
    "message_id": "m",
    "rating": "positive",
    "note": "n",
    "if_version": "v",
    "actor": "a",
    "command_id": ID,
    "expires_at": NOW + 1,
}


def completed(request: Request, retention_ms: int = 7 * DAY) -> Command:
    return command_from(request, now_ms=NOW, new_id=OTHER, retention_ms=retention_ms)


def put(**members: Any) -> Command:
    return completed(Put(**(EVERY | members)))


def refused(path: str, **members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        put(**members)
    assert caught.value.path == path
    return caught.value


def test_a_request_becomes_a_complete_command() -> None:
    """Every member is carried over; id and deadline are filled in when the caller gave none."""
    assert put() == PutCommand(
        schema=SCHEMA,
        command_id=ID,
        session_id="s",
        message_id="m",
        if_version="v",
        actor="a",
        expires_at=NOW + 1,
        rating="positive",
        note="n",
    )
    assert completed(Delete("s", "m")) == DeleteCommand(
        schema=SCHEMA, command_id=OTHER, session_id="s", message_id="m", if_version=None, expires_at=NOW + DAY
    )


@pytest.mark.parametrize("name", ["session_id", "message_id", "rating", "note", "if_version", "actor"])
def test_every_member_is_checked(name: str) -> None:
    """Wrong types and lone surrogates, with the path in the wire's spelling."""
    head, *tail = name.split("_")
    path = "$." + head + "".join(map(str.capitalize, tail))
    wrong: tuple[object, ...] = (1, True, [], b"x", {}, float("nan"), "\ud800")
    for value in wrong:
        refused(path, **{name: value})
    if name in ("session_id", "message_id", "rating"):
        refused(path, **{name: None})


def test_only_requests_become_commands() -> None:
    """A mapping, None or a finished command is refused."""
    wrong: tuple[Any, ...] = ({}, None, "put", put())
    for value in wrong:
        with pytest.raises(InvalidRequest):
            completed(value)


@pytest.mark.parametrize("value", [ID, ID.upper(), UUID(ID), ID[:20].upper() + ID[20:]])
def test_a_command_id_has_one_spelling(value: str | UUID) -> None:
    """Lower case with dashes, however it was given: else one id would be two."""
    assert put(command_id=value).command_id == ID
    assert parse_command_id(value) == ID


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        ID + "\n",
        " " + ID,
        ID.replace("-", ""),
        "{" + ID + "}",
        "urn:uuid:" + ID,
        ID[:-1],
        ID + "0",
        ID[:-1] + "g",
        ID[:-1] + "\u0660",
        ID[:-1] + "\ud800",
        7,
        10**5000,
        b"0b7d3c1e",
        True,
        [ID],
    ],
    ids=range(17),
)
def test_what_is_no_uuid_is_no_command_id(value: object) -> None:
    """It becomes part of a key's name: nothing but hex digits and dashes gets through."""
    assert "UUID" in refused("$.commandId", command_id=value).reason
    with pytest.raises(InvalidRequest):
        parse_command_id(value)


def test_a_caller_without_a_deadline_gets_24_hours() -> None:
    """Or the retention, where that is shorter."""
    assert put(expires_at=None).expires_at == NOW + DAY
    assert completed(Put("s", "m", "positive"), retention_ms=1000).expires_at == NOW + 1000


def test_a_deadline_lies_within_the_retention() -> None:
    """To the millisecond: later, the record could be forgotten before the command expires."""
    assert put(expires_at=NOW + 7 * DAY).expires_at == NOW + 7 * DAY
    for late in (NOW + 7 * DAY + 1, 2**63, 10**400):
        assert "retention" in refused("$.expiresAt", expires_at=late).reason


def test_a_past_deadline_is_taken() -> None:
    """It is the worker that says `CommandExpired`; only what no clock ever showed is malformed."""
    assert put(expires_at=0).expires_at == 0
    for before in (-1, -(2**70), datetime(1960, 1, 1, tzinfo=UTC)):
        refused("$.expiresAt", expires_at=before)


def test_an_aware_datetime_is_a_deadline() -> None:
    """Whatever its zone: the instant counts."""
    later = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(minutes=5)
    for zone in (UTC, timezone(timedelta(hours=-11))):
        assert put(expires_at=later.astimezone(zone)).expires_at == NOW + 300_000


class NowhereZone(tzinfo):
    """A zone that does not know its offset."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


def test_a_naive_datetime_is_refused() -> None:
    """It would mean another instant on another machine; a zone without an offset is none."""
    later = datetime.fromtimestamp(NOW / 1000 + 5, UTC)
    for zone in (None, NowhereZone()):
        assert "time zone" in refused("$.expiresAt", expires_at=later.replace(tzinfo=zone)).reason


@pytest.mark.parametrize("value", [True, 1.5, float("nan"), "1790000000001", b"", []])
def test_a_deadline_is_milliseconds_or_a_datetime(value: object) -> None:
    """Nothing is guessed."""
    refused("$.expiresAt", expires_at=value)


def test_an_actor_is_bounded_in_bytes() -> None:
    """Bytes of UTF-8, not characters; an empty one is one."""
    assert put(actor="é" * (MAX_ACTOR_BYTES // 2)).actor == "é" * (MAX_ACTOR_BYTES // 2)
    assert put(actor="").actor == ""
    refused("$.actor", actor="x" * (MAX_ACTOR_BYTES + 1))
    refused("$.actor", actor="é" * (MAX_ACTOR_BYTES // 2) + "x")


@pytest.mark.parametrize("schema", [0, 2, -1, 2**40])
def test_another_schema_is_refused(schema: int) -> None:
    """With a hint at which side to upgrade."""
    with pytest.raises(InvalidRequest, match="upgrade") as caught:
        check_command(msgspec.structs.replace(put(), schema=schema))
    assert caught.value.path == "$.schema"


def test_a_command_id_on_the_wire_is_lower_case() -> None:
    """The job's id is its key: two spellings must not be two commands."""
    with pytest.raises(InvalidRequest, match="lower case"):
        check_command(msgspec.structs.replace(put(), command_id=ID.upper()))


def test_commands_are_closed_too() -> None:
    """Unknown and missing members, and an unknown type, among decoded members."""
    members = msgspec.to_builtins(put())
    assert command_from_members(members) == put()
    wrong = [members | {"extra": 1}, members | {"type": "list"}, members | {"\ud800": 1}, [], None]
    wrong += [{name: value for name, value in members.items() if name != gone} for gone in members if gone in REQUIRED]
    for document in wrong:
        with pytest.raises(InvalidRequest):
            command_from_members(document)


REQUIRED = ("type", "schema", "commandId", "sessionId", "messageId", "ifVersion", "expiresAt", "rating")


def test_the_digest_covers_what_the_command_does() -> None:
    """Each difference in target, condition, actor, rating or note is another payload; so is put and delete."""
    variants: list[Command] = [
        put(),
        put(session_id="s2"),
        put(message_id="m2"),
        put(session_id="sm", message_id=""),
        put(session_id="", message_id="sm"),
        put(if_version="v2"),
        put(if_version=None),
        put(if_version=""),
        put(actor="a2"),
        put(actor=None),
        put(actor=""),
        put(rating="negative"),
        put(note="n2"),
        put(note=None),
        put(note=""),
        completed(Delete("s", "m", "v", "a")),
        completed(Delete("s", "m", None, "a")),
    ]
    for one, other in combinations(variants, 2):
        assert digest_of(one) != digest_of(other)


def test_the_digest_leaves_id_and_deadline_out() -> None:
    """So that a host may send the command again with a later deadline; schema is how it was spelt."""
    assert digest_of(put()) == digest_of(put(command_id=OTHER, expires_at=NOW + DAY))
    assert digest_of(put()) == digest_of(msgspec.structs.replace(put(), schema=2))


def test_the_digest_never_changes() -> None:
    """Records hold it: a new program must recognise an old command."""
    assert digest_of(put()).hex() == "6e4b5e47702acb65c3e397af85d37c6489227c4c2469904f577f452daa685af5"
