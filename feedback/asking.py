"""Lists and recorded answers by who knows nothing but Redis: the projector is asked, and waited for."""

import time
from uuid import uuid4

import msgspec

from feedback import keys, queries
from feedback.calls import Caller, Flow, wall_clock_ms
from feedback.errors import CommandFailed, CommandUnknown, QueueUnavailable
from feedback.failures import error_of
from feedback.results import Result, at_revision, result_from_builtins

MAX_QUERIES = 10_000
"""Queries that may wait; the oldest, whose askers wait no more or ask again, make room."""

_LONGEST_WAIT_S = 366 * 24 * 3600.0
_ASK_AGAIN_S = 2.0


class Asker:
    """Puts one client's questions. `block_s`: how long the server may be silent before it is taken for gone.

    `host`: where its Sessions' logs lie, for a projector that does not see them.
    """

    def __init__(self, caller: Caller, block_s: float, host: str | None = None) -> None:
        self._caller = caller
        self._host = host
        self._block_s = block_s

    def list(self, session_id: str, at_least: int | None, deadline: float, *, missed: bool) -> Flow[Result]:
        """A Session's list; `missed`: the client looked for it in the cache.

        Raises:
            QueueUnavailable: no projector answered in time.
            FeedbackError: the Session's log or the store could not answer.
        """
        query = queries.ListQuery(
            query_id=uuid4().hex,
            deadline=_deadline_ms(deadline),
            session_id=session_id,
            at_least=at_least,
            missed=missed,
            host=self._host,
        )
        document = yield from self._answer(query, deadline)
        return queries.list_in(document) or _result(_read(document))

    def recorded(self, command_id: str, deadline: float) -> Flow[Result]:
        """A command's answer as the store recorded it. Raises as `list`.

        Raises:
            CommandUnknown: there is no record.
        """
        query = queries.OutcomeQuery(query_id=uuid4().hex, deadline=_deadline_ms(deadline), command_id=command_id)
        answer = _read((yield from self._answer(query, deadline)))
        if isinstance(answer, queries.Unknown):
            raise CommandUnknown(f"command {command_id} is neither waiting nor recorded")
        return _result(answer)

    def _answer(self, query: queries.Query, deadline: float) -> Flow[bytes]:
        """Ask and wait in one write; whatever got lost, ask the same again."""
        document, reply_list = queries.encode_query(query), keys.reply(query.query_id)
        while True:
            # Look at least once, and never ask for 0: that would block for ever.
            patience = max(0.001, min(self._block_s, _ASK_AGAIN_S, deadline - time.monotonic()))
            behind = (
                ("LTRIM", keys.QUERIES, -MAX_QUERIES, -1),
                ("EXPIRE", keys.QUERIES, keys.REPLY_TTL_S),
                ("BLPOP", reply_list, f"{patience:.3f}"),
            )
            *_, reply = yield from self._caller.call(("RPUSH", keys.QUERIES, document), deadline, behind)
            if reply is not None:
                answer: bytes = reply[1]
                return answer
            if time.monotonic() >= deadline:
                raise QueueUnavailable("no projector answered in time; is `feedback projector` running?")


def _deadline_ms(deadline: float) -> int:
    """A deadline of the monotonic clock on the wall clock, no further ahead than anybody waits."""
    return wall_clock_ms() + int(1000 * min(deadline - time.monotonic(), _LONGEST_WAIT_S))


def _read(document: bytes) -> queries.Answer:
    try:
        return queries.decode_answer(document)
    except msgspec.MsgspecError as error:
        raise CommandFailed(f"the projector's answer is not readable: {error}") from None


def _result(answer: queries.Answer) -> Result:
    match answer:
        case queries.Failed():
            raise error_of(answer.failure)
        case queries.Unknown() | queries.Unsupported():
            raise CommandFailed("the projector does not know this question: upgrade the older side")
        case queries.Answered():
            try:
                return at_revision(result_from_builtins(answer.result), answer.revision)
            except msgspec.ValidationError as error:
                raise CommandFailed(f"the projector's answer is not one of the contract's: {error}") from None
