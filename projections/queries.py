"""The responder: takes queries from a Redis list in batches, and answers each on its own list."""

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from threading import Event as StopEvent

import msgspec
from msgspec import Struct
from redis import Redis

from feedback import keys
from feedback.errors import StoreUnavailable
from feedback.failures import failure_of
from feedback.queries import Answer, Failed, ListQuery, Query, decode_query, encode_answer
from feedback.scripting import Script
from persistence.sidecar.store import SidecarStore
from projections.answers import Answers, NotYet
from projections.cache import ListCache, drop_foreign
from projections.patience import run_patiently
from projections.resolving import IdentitySource, Resolver

_log = logging.getLogger(__name__)
_put_replies = Script("projections", "reply")

_BATCH = 256
_BLOCK_S = 0.5
_RECHECK_S = 0.05
"""How often queries that wait for a revision are looked at again."""
_PARTING_MS = 150
"""How long before its deadline a query is told that it waits in vain, so that the answer still finds its reader."""
_LONGEST_WAIT_MS = 600_000
_MAX_WAITING = 10_000
_MAX_QUERY_BYTES = 2**20


class _Waiting(Struct, frozen=True):
    """A query that asks for a revision which the store has not reached."""

    query: ListQuery
    give_up_ms: int


class Responder:
    """Answers the queries of one deployment. For one thread; any number may run, on any machine."""

    def __init__(self, redis: Redis, store: SidecarStore, identities: IdentitySource, threads: Executor) -> None:
        """`redis` is used by this responder alone; its owner closes it. `threads` read Session logs."""
        self._redis = redis
        self._answers = Answers(ListCache(redis), store)
        self._resolver = Resolver(identities, threads)
        self._waiting: dict[str, _Waiting] = {}
        self._next_check = 0.0

    def run(self, stop: StopEvent) -> None:
        """Answer until `stop` is set.

        Raises:
            RedisError: one that does not pass by itself.
        """
        run_patiently("responder", self._redis, stop, lambda: self.step(_BLOCK_S), self._recover)

    def step(self, block_s: float) -> None:
        """Answer one batch, waiting at most `block_s` for it.

        Raises:
            RedisError: the batch is lost; whoever asked asks again.
        """
        busy = self._waiting or self._resolver.is_busy
        queries = self._take(min(block_s, _RECHECK_S) if busy else block_s)
        ready, answers = self._due()
        for query in queries:
            if isinstance(query, ListQuery):
                ready.append(query)
            else:
                answers.append((query.query_id, self._answers.outcome(query)))
        resolved = self._resolver.resolved(ready)
        if resolved:
            for (query, _), answer in zip(resolved, self._answers.lists(resolved), strict=True):
                known = self._wait(query, answer.revision) if isinstance(answer, NotYet) else answer
                answers += [(query.query_id, known)] if known else []
        self._reply(answers)

    def _recover(self) -> None:
        drop_foreign(self._redis, {keys.QUERIES: b"list", keys.LIST_ERA: b"string"})

    def _take(self, block_s: float) -> list[Query]:
        reply = self._redis.execute_command("BLMPOP", block_s, 1, keys.QUERIES, "LEFT", "COUNT", _BATCH)
        return list(_readable(reply[1])) if reply else []

    def _due(self) -> tuple[list[ListQuery], list[tuple[str, Answer]]]:
        """Of the waiting queries: those that can be answered now, and the answers to those that waited in vain."""
        if not self._waiting or time.monotonic() < self._next_check:
            return [], []
        self._next_check = time.monotonic() + _RECHECK_S
        now_ms = _now_ms()
        ready: list[ListQuery] = []
        answers: list[tuple[str, Answer]] = []
        try:
            reached = self._answers.reached([waiting.query for waiting in self._waiting.values()])
        except StoreUnavailable as error:
            answers = [(query_id, Failed(failure_of(error))) for query_id in self._waiting]
            self._waiting.clear()
            return ready, answers
        for query_id, waiting in list(self._waiting.items()):
            revision = reached.get(waiting.query.session_id, 0)
            if revision >= (waiting.query.at_least or 0):
                ready.append(self._waiting.pop(query_id).query)
            elif now_ms >= waiting.give_up_ms:
                del self._waiting[query_id]
                answers.append((query_id, _behind(waiting.query, revision)))
        return ready, answers

    def _wait(self, query: ListQuery, revision: int) -> Answer | None:
        """Look at the query again later, or say at once that it would wait in vain."""
        now_ms = _now_ms()
        give_up_ms = min(query.deadline - _PARTING_MS, now_ms + _LONGEST_WAIT_MS)
        # Whoever got no answer for a while asks again by the same id.
        if now_ms >= give_up_ms or (len(self._waiting) >= _MAX_WAITING and query.query_id not in self._waiting):
            return _behind(query, revision)
        self._waiting[query.query_id] = _Waiting(query, give_up_ms)
        return None

    def _reply(self, answers: Sequence[tuple[str, Answer]]) -> None:
        if not answers:
            return
        names = [keys.reply(query_id) for query_id, _ in answers]
        _put_replies(self._redis, names, [keys.REPLY_TTL_S, *(encode_answer(answer) for _, answer in answers)])


def _readable(documents: Iterable[bytes]) -> Iterable[Query]:
    """The queries that somebody may still be waiting for."""
    now_ms = _now_ms()
    for document in documents:
        if len(document) > _MAX_QUERY_BYTES:
            _log.warning("query dropped bytes=%d", len(document))
            continue
        try:
            query = decode_query(document)
        except msgspec.MsgspecError as error:
            _log.warning("malformed query dropped reason=%s", error)
            continue
        if query.deadline > now_ms:
            yield query


def _behind(query: ListQuery, revision: int) -> Answer:
    reason = f"the Session is at revision {revision}, and did not reach {query.at_least} in time"
    return Failed(failure_of(StoreUnavailable(reason)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
