"""Which life a Session is in whose log this projector cannot see: the agent of its host says so (docs/agents.md)."""

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from uuid import uuid4

from msgspec import Struct
from redis import Redis
from redis.exceptions import RedisError

from feedback import keys
from feedback.agent_desk import AgentDesk, Asked, Testimony, unanswered
from feedback.errors import FeedbackError
from feedback.evidence import REPLY_MARK, LogQuestion
from feedback.failures import failure_of
from projections.looking import Found

_log = logging.getLogger(__name__)

_BLOCK_S = 0.25
"""How late it may be noticed that time is up."""
_PAUSE_S = 0.2


class _Waiting(Struct, frozen=True):
    found: Future[Found]
    asked: Asked


class AgentIdentities:
    """Asks agents about identities, many at once. `ask` is for one thread; a thread of its own hears the answers."""

    def __init__(self, asking: Redis, listening: Redis, timeout_s: float) -> None:
        """Both clients are used by this object alone; their owner closes them, after `close`."""
        self._listening = listening
        self._me = f"projector-{uuid4().hex}"
        self._desk = AgentDesk(asking, self._me, timeout_s)
        self._lock = threading.Lock()
        """Guards the desk and what waits."""
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        """By request and Session."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="agent-answers", daemon=True)

    def ask(self, sessions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Future[Found]]:
        """What is found of Sessions, given as host and id, in one round trip to the server; each a future that is
        done at the answer, or when time is up.

        Raises:
            RedisError: some may have been asked; asking again is harmless.
        """
        questions: dict[str, list[LogQuestion]] = {}
        for host, session_id in sessions:
            questions.setdefault(host, []).append(LogQuestion(session_id=session_id))
        if not questions:
            return {}
        if self._thread.ident is None:
            self._thread.start()
        found: dict[tuple[str, str], Future[Found]] = {}
        with self._lock:
            for asked in self._desk.request(questions):
                for session_id in asked.session_ids:
                    future = found[asked.host, session_id] = Future[Found]()
                    if asked.absent:
                        future.set_result(failure_of(unanswered(asked)))
                    else:
                        self._waiting[asked.request_id, session_id] = _Waiting(future, asked)
        return found

    def close(self) -> None:
        """End the thread; what was not answered never is."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            ring = self._next_ring()
            with self._lock:
                if ring is not None and ring.startswith(REPLY_MARK):
                    for told in self._desk.told(ring):
                        waiting = self._waiting.pop((told.request_id, told.session_id), None)
                        if waiting is not None:
                            waiting.found.set_result(_found(told.testimony))
                now = time.monotonic()
                for key in [key for key, waiting in self._waiting.items() if waiting.asked.until_s <= now]:
                    waiting = self._waiting.pop(key)
                    waiting.found.set_result(failure_of(unanswered(waiting.asked)))

    def _next_ring(self) -> bytes | None:
        try:
            rung = self._listening.blpop([keys.wake(self._me)], timeout=_BLOCK_S)
        except RedisError as error:
            _log.warning("agents are not heard for a moment: %s", error)
            with suppress(RedisError):
                self._listening.connection_pool.disconnect()
            self._stopping.wait(_PAUSE_S)
            return None
        return rung[1] if rung is not None and isinstance(rung[1], bytes) else None


def _found(testimony: Testimony) -> Found:
    if isinstance(testimony, FeedbackError):
        return failure_of(testimony)
    return None if testimony.log is None else testimony.log.identity
