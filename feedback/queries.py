"""Questions that a client puts to the projector, and the answers (msgpack on Redis lists).

A client pushes a query on `keys.QUERIES` and waits on `keys.reply(query_id)`. Asking again is
harmless. A query past its deadline is dropped unanswered: nobody waits for it any more.
"""

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from feedback.decoding import decoded
from feedback.failures import Failure


class _QueryBase(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="type"):
    """`deadline` in milliseconds since the Unix epoch."""

    query_id: str
    deadline: int


class ListQuery(_QueryBase, frozen=True, kw_only=True, tag="list"):
    """The contract's `list`; `at_least` is a revision that the answer must have reached."""

    session_id: str
    at_least: int | None = None


class OutcomeQuery(_QueryBase, frozen=True, kw_only=True, tag="outcome"):
    """The recorded answer to a command, by its id."""

    command_id: str


Query: TypeAlias = ListQuery | OutcomeQuery


class Answered(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="answered"):
    """`result` is the contract's result as plain members; `revision` the Session's."""

    result: Any
    revision: int | None


class Unknown(Struct, frozen=True, tag_field="type", tag="unknown"):
    """No record of such a command is kept."""


class Failed(Struct, frozen=True, tag_field="type", tag="failed"):
    """The question could not be answered."""

    failure: Failure


Answer: TypeAlias = Answered | Unknown | Failed

_queries = msgspec.msgpack.Decoder(Query)
_answers = msgspec.msgpack.Decoder(Answer)


def encode_query(query: Query) -> bytes:
    return msgspec.msgpack.encode(query)


def decode_query(data: bytes) -> Query:
    """Raises `msgspec.MsgspecError` for anything that is not a query."""
    return decoded(_queries, data)


def encode_answer(answer: Answer) -> bytes:
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Raises `msgspec.MsgspecError` for anything that is not an answer."""
    return decoded(_answers, data)
