"""Asking live owners to flush."""

import logging
import time
from collections.abc import Iterable, Mapping
from uuid import uuid4

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from barrier.rules import FlushOutcome, outcome_of, unanswered
from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.connection import BLOCK_S, is_passing
from feedback.flushing import REPLY_MARK, FlushReply, FlushRequest, LiveOwner, decode_reply, encode_request

logger = logging.getLogger(__name__)


class FlushDesk:
    """Sends flush requests in one worker's name; the replies come in on its wake list."""

    def __init__(self, redis: Redis, worker_id: str, timeout_s: float) -> None:
        self._redis = redis
        self._worker_id = worker_id
        self._timeout_s = timeout_s

    def request(self, owners: Mapping[str, LiveOwner]) -> float:
        """Ask each owner, by request id, in one round trip; until when (monotonic seconds) an answer counts.

        Raises:
            RedisError: some may have been asked; asking again is harmless.
        """
        # The host's clock may be another one; a reply that comes too late is not waited for anyway.
        deadline = wall_clock_ms() + int(1000 * (self._timeout_s + keys.REPLY_TTL_S))
        with self._redis.pipeline(transaction=False) as pipeline:
            for request_id, owner in owners.items():
                request = FlushRequest(
                    request_id=request_id,
                    worker_id=self._worker_id,
                    session_id=owner.session_id,
                    session=owner.identity,
                    deadline=deadline,
                )
                pipeline.rpush(keys.flushes(owner.owner_id), encode_request(request))
                pipeline.expire(keys.flushes(owner.owner_id), keys.REPLY_TTL_S)
            replies = pipeline.execute(raise_on_error=False)
        for reply in replies:
            # What a key of another type refuses is a flush that nobody answers.
            if isinstance(reply, RedisError) and is_passing(reply):
                raise reply
        return time.monotonic() + self._timeout_s

    def ask(self, owners: Iterable[LiveOwner]) -> dict[str, FlushOutcome]:
        """Ask, and wait for all answers as long as they count; what came of it, by Session id.

        Other rings on the wake list are lost on the way: only for who has no loop.

        Raises:
            RedisError: asking again is harmless.
        """
        asked = {new_request_id(): owner for owner in owners}
        until = self.request(asked)
        outcomes: dict[str, FlushOutcome] = {owner.session_id: unanswered(owner) for owner in asked.values()}
        while asked and (left_s := until - time.monotonic()) > 0:
            rung = self._redis.blpop([keys.wake(self._worker_id)], timeout=min(BLOCK_S, max(0.01, left_s)))
            reply = read_reply(rung[1]) if rung is not None and isinstance(rung[1], bytes) else None
            if reply is not None and (owner := asked.pop(reply.request_id, None)) is not None:
                outcomes[owner.session_id] = outcome_of(reply, owner)
        return outcomes


def new_request_id() -> str:
    return uuid4().hex


def read_reply(ring: bytes) -> FlushReply | None:
    """A ring on the wake list as an owner's reply, if it is one."""
    if not ring.startswith(REPLY_MARK):
        return None
    try:
        return decode_reply(ring)
    except msgspec.MsgspecError as error:
        logger.warning("malformed flush reply dropped: %s", error)
        return None
