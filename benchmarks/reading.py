"""Answers as the projector makes them, in this process; and a crowd that asks the projector."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

from benchmarks.deployment import Deployment
from feedback import AsyncFeedbackClient, Ok, keys
from feedback.calls import wall_clock_ms
from feedback.connection import connect
from feedback.queries import Answered, ListQuery, decode_answer, encode_query, list_in
from persistence.session_log import SessionLogs
from persistence.sidecar import open_store
from projections.answers import Answers
from projections.cache import ListCache
from projections.process import CurrentIdentities

_MINUTE_MS = 60_000
_BATCH = 256


class Reader:
    """Makes lists anew as the projector does: a stat, the store's revision, the cache, the list from the store."""

    def __init__(self, stack: ExitStack, system: Deployment) -> None:
        """Its connections close with `stack`."""
        self.redis = stack.enter_context(connect(system.settings.redis_url))
        store = stack.enter_context(closing(open_store(system.settings.sidecar_url)))
        self.cache = ListCache(self.redis)
        self._answers = Answers(self.cache, store)
        self._identities = CurrentIdentities(SessionLogs(Path(system.settings.sessions)), self.redis)

    def read(self, session_ids: Sequence[str]) -> None:
        """The lists of these Sessions, in one batch."""
        logs = self._identities
        resolved = [
            (_query(session_id, missed=True), logs.known_identity(session_id) or logs.identity(session_id))
            for session_id in session_ids
        ]
        for answer in self._answers.lists(resolved):
            assert isinstance(answer, bytes), answer
            assert list_in(answer), answer

    def read_all(self, session_ids: Sequence[str]) -> None:
        for start in range(0, len(session_ids), _BATCH):
            self.read(session_ids[start : start + _BATCH])


def ask_at_once(system: Deployment, session_ids: Sequence[str]) -> None:
    """Put all questions to the projector, then take all answers: what it can do when nobody waits for another."""
    asked = [_query(session_id) for session_id in session_ids]
    with system.redis.pipeline(transaction=False) as pipeline:
        for query in asked:
            pipeline.execute_command("RPUSH", keys.QUERIES, encode_query(query))
        for query in asked:
            pipeline.execute_command("BLPOP", keys.reply(query.query_id), 4)
        replies = pipeline.execute()[len(asked) :]
    for _, answer in replies:
        assert isinstance(decode_answer(answer), Answered), answer


async def list_concurrently(url: str, session_ids: Sequence[str], concurrent: int) -> None:
    """One asyncio host that lists Sessions, so many of them at a time."""
    waiting = iter(session_ids)

    async def caller(client: AsyncFeedbackClient) -> None:
        for session_id in waiting:
            assert isinstance(await client.list(session_id), Ok)

    async with AsyncFeedbackClient.from_url(url) as client:
        await asyncio.gather(*(caller(client) for _ in range(concurrent)))


def _query(session_id: str, *, missed: bool = False) -> ListQuery:
    return ListQuery(query_id=uuid4().hex, deadline=wall_clock_ms() + _MINUTE_MS, session_id=session_id, missed=missed)
