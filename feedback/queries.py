"""Questions that a client puts to the projector, and the answers (msgpack on Redis lists).

A client pushes a query on `keys.QUERIES` and waits on `keys.reply(query_id)`. Asking again is
harmless. A query long past its deadline (clocks differ) is dropped unanswered: nobody waits for it any more.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from feedback.decoding import decoded
from feedback.failures import Failure
from feedback.results import ItemList, Ok, at_revision

SCHEMA = 1
"""The newest that is understood here. An answer is in the schema of its query; left out on the wire, it is 1."""


class _QueryBase(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="type", omit_defaults=True
):
    """`deadline` in milliseconds since the Unix epoch."""

    schema: Literal[1] = 1
    query_id: str
    deadline: int


class ListQuery(_QueryBase, frozen=True, kw_only=True, tag="list"):
    """The contract's `list`.

    `at_least` is a revision that the answer must have reached. `missed`: whoever asks reads cached lists by itself,
    and found none that is current; one is to stand there before the answer. `host`: where the Session's log lies.
    """

    session_id: str
    at_least: int | None = None
    missed: bool = False
    host: str | None = None


class OutcomeQuery(_QueryBase, frozen=True, kw_only=True, tag="outcome"):
    """The recorded answer to a command, by its id."""

    command_id: str


Query: TypeAlias = ListQuery | OutcomeQuery


class Envelope(Struct, frozen=True, rename="camel"):
    """What every query has, of whatever schema and type: enough to say that it is not understood."""

    query_id: str
    deadline: int


class Answered(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="answered"):
    """`result` is the contract's result, read as plain members; `revision` the Session's."""

    result: Any
    revision: int | None


class Unknown(Struct, frozen=True, tag_field="type", tag="unknown"):
    """No record of such a command is kept."""


class Unsupported(Struct, frozen=True, tag_field="type", tag="unsupported"):
    """The projector does not understand the query; `schema` is the newest that it does."""

    schema: int = SCHEMA


class Failed(Struct, frozen=True, tag_field="type", tag="failed"):
    """The question could not be answered."""

    failure: Failure


Answer: TypeAlias = Answered | Unknown | Unsupported | Failed


class _List(Struct, frozen=True):
    ok: Literal[True]
    value: ItemList


class _Listed(Struct, frozen=True, tag_field="type", tag="answered"):
    result: _List
    revision: int | None


_queries = msgspec.msgpack.Decoder(Query)
_envelopes = msgspec.msgpack.Decoder(Envelope)
_answers = msgspec.msgpack.Decoder(Answer)
_lists = msgspec.msgpack.Decoder(_Listed)


def encode_query(query: Query) -> bytes:
    return msgspec.msgpack.encode(query)


def decode_query(data: bytes) -> Query:
    """Raises `msgspec.MsgspecError` for anything that is not a query."""
    return decoded(_queries, data)


def decode_envelope(data: bytes) -> Envelope:
    """What is readable of a query of another schema or type. Raises `msgspec.MsgspecError` when that is nothing."""
    return decoded(_envelopes, data)


def encode_answer(answer: Answer) -> bytes:
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Raises `msgspec.MsgspecError` for anything that is not an answer."""
    return decoded(_answers, data)


def list_in(data: bytes) -> Ok | None:
    """The list that an answer holds, with its revision; None when it holds none, which `decode_answer` tells apart.

    What is asked for most comes without the detour over plain members.
    """
    try:
        listed = decoded(_lists, data)
    except msgspec.MsgspecError:
        return None
    result = Ok(value=listed.result.value)
    at_revision(result, listed.revision)
    return result
