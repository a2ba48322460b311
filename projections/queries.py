"""The responder: takes queries from a Redis list in batches, and answers each on its own list."""

import time
from contextlib import suppress
from threading import Event as StopEvent
from typing import TypeAlias

from msgspec import Struct
from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.errors import StoreUnavailable
from feedback.identities import SessionIdentities
from feedback.lines import Lines
from feedback.queries import ListQuery, Query, Unsupported, encode_answer
from feedback.scripting import Script
from persistence.sidecar.store import SidecarStore
from projections.answers import Answers, NotYet, failed
from projections.cache import ListCache, drop_foreign
from projections.intake import Intake
from projections.meter import Meter
from projections.patience import run_patiently
from projections.resolving import LONGEST_WAIT_MS, PARTING_MS, Agents, Resolver

_put_replies = Script("projections", "reply")

_BATCH = 256
_BLOCK_S = 0.5
_RECHECK_S = 0.05
"""How often queries that wait for a revision are looked at again."""
_MAX_WAITING = 10_000
_OFF = Meter()
_MOST_REPLY_BYTES = 4 * 2**20
"""Of answers in one request, or one answer that is larger: a server takes neither a request nor a pause of any size."""

_Replies: TypeAlias = tuple[list[str], list[bytes | int]]
"""Keys and arguments of the script that sends answers."""


class _Waiting(Struct, frozen=True):
    """A query that asks for a revision which the store has not reached."""

    query: ListQuery
    give_up_ms: int


class Responder:
    """Answers the queries of one deployment. For one thread; any number may run, on any machine."""

    def __init__(
        self,
        redis: Redis,
        store: SidecarStore,
        identities: SessionIdentities | None,
        threads: int,
        *,
        agents: Agents | None = None,
        host: str = "",
        meter: Meter = _OFF,
    ) -> None:
        """`redis` is used by this responder alone; its owner closes it, after `close`.

        `identities`, `threads`, `agents` and `host` as `projections.resolving.Resolver` has them.
        """
        self._redis = redis
        self._lines = Lines(redis)
        self._meter = meter
        self._intake = Intake(meter)
        self._answers = Answers(ListCache(redis), store, meter)
        self._resolver = Resolver(identities, threads, agents=agents, host=host)
        self._waiting: dict[str, _Waiting] = {}
        self._next_check = 0.0
        self._taught = False
        self._ready: list[tuple[str, bytes]] = []
        """Answers by query id, which go out with the next look for queries: one write less for who waits alone."""

    def run(self, stop: StopEvent) -> None:
        """Answer until `stop` is set.

        Raises:
            RedisError: one that does not pass by itself.
        """
        run_patiently("responder", self._redis, stop, lambda: self.step(_BLOCK_S), self._recover, meter=self._meter)
        with suppress(RedisError):
            self.flush()

    def step(self, block_s: float) -> None:
        """Send what is ready, take one batch, waiting at most `block_s` for it, and have its answers ready.

        Raises:
            RedisError: the batch is lost; whoever asked asks again.
        """
        busy = self._waiting or self._resolver.is_busy
        queries = self._exchange(min(block_s, _RECHECK_S) if busy else block_s)
        if queries:
            self._meter.took(len(queries))
        ready = self._due()
        for query in queries:
            if isinstance(query, ListQuery):
                ready.append(query)
            else:
                self._ready.append((query.query_id, self._answers.outcome(query)))
        resolved = self._resolver.resolved(ready)
        if resolved:
            for (query, _), answer in zip(resolved, self._answers.lists(resolved), strict=True):
                known = self._wait(query, answer.revision) if isinstance(answer, NotYet) else answer
                self._ready += [(query.query_id, known)] if known else []

    def flush(self) -> None:
        """Send what is ready."""
        for names, args in self._replies():
            _put_replies(self._redis, names, args)

    def close(self) -> None:
        """Close the connections that this responder made, and end its threads."""
        self._resolver.close()
        self._lines.close()

    def _recover(self) -> None:
        self._lines.drop()
        self._taught = False
        drop_foreign(self._redis, {keys.QUERIES: b"list", keys.LIST_ERA: b"string"})

    def _replies(self) -> list[_Replies]:
        """What is ready, and then is so no more, as the script takes it; in parts of a size that the server takes."""
        ready, self._ready = self._ready, []
        parts: list[_Replies] = []
        size = _MOST_REPLY_BYTES
        for query_id, answer in ready:
            size += len(answer)
            if size > _MOST_REPLY_BYTES:
                parts.append(([], [keys.REPLY_TTL_S]))
                size = len(answer)
            names, args = parts[-1]
            names.append(keys.reply(query_id))
            args.append(answer)
        return parts

    def _exchange(self, block_s: float) -> list[Query]:
        """Send what is ready and take the next queries, in one write."""
        replies = self._replies()
        take = ("BLMPOP", block_s, 1, keys.QUERIES, "LEFT", "COUNT", _BATCH)
        for names, args in replies[:-1]:
            _put_replies(self._redis, names, args)
        if not self._taught:
            # A refusal for want of the script would come only when the wait for questions is over.
            self._redis.execute_command(*_put_replies.load())
            self._taught = True
        put_last = [_put_replies.by_digest(*part) for part in replies[-1:]]
        *put, taken, era = self._lines.send(*put_last, take, ("GET", keys.LIST_ERA), refusals=True)
        for part, reply in zip(replies[-1:], put, strict=True):
            if isinstance(reply, NoScriptError):
                _put_replies(self._redis, *part)
            elif isinstance(reply, ResponseError):
                raise reply
        for reply in (taken, era):
            if isinstance(reply, ResponseError):
                raise reply
        self._answers.go_on_in(era)
        documents = taken[1] if taken else ()
        queries, unknown = self._intake.read(documents, are_all=len(documents) < _BATCH)
        self._ready += [(query_id, encode_answer(Unsupported())) for query_id in unknown]
        return queries

    def _due(self) -> list[ListQuery]:
        """Of the waiting queries: those that can be answered now. Those that waited in vain are told so."""
        ready: list[ListQuery] = []
        if not self._waiting or time.monotonic() < self._next_check:
            return ready
        self._next_check = time.monotonic() + _RECHECK_S
        now_ms = wall_clock_ms()
        try:
            reached = self._answers.reached([waiting.query for waiting in self._waiting.values()])
        except StoreUnavailable as error:
            self._ready += [(query_id, failed(error)) for query_id in self._waiting]
            self._waiting.clear()
            return ready
        for query_id, waiting in list(self._waiting.items()):
            revision = reached.get(waiting.query.session_id, 0)
            if revision >= (waiting.query.at_least or 0):
                ready.append(self._waiting.pop(query_id).query)
            elif now_ms >= waiting.give_up_ms:
                del self._waiting[query_id]
                self._ready.append((query_id, _behind(waiting.query, revision)))
        return ready

    def _wait(self, query: ListQuery, revision: int) -> bytes | None:
        """Look at the query again later, or say at once that it would wait in vain."""
        now_ms = wall_clock_ms()
        give_up_ms = min(query.deadline - PARTING_MS, now_ms + LONGEST_WAIT_MS)
        # Whoever got no answer for a while asks again by the same id.
        if now_ms >= give_up_ms or (len(self._waiting) >= _MAX_WAITING and query.query_id not in self._waiting):
            return _behind(query, revision)
        self._waiting[query.query_id] = _Waiting(query, give_up_ms)
        return None


def _behind(query: ListQuery, revision: int) -> bytes:
    reason = f"the Session is at revision {revision}, and did not reach {query.at_least} in time"
    return failed(StoreUnavailable(reason))
