"""The loop's exchange with the server: acknowledgements go out and claims come in while the next batch is worked on."""

import contextlib
from collections.abc import Sequence
from itertools import chain

from msgspec import Struct
from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from feedback import keys
from feedback.crashpoints import CrashPoint, reach
from persistence.sidecar.store import SidecarStore
from worker.acknowledge import acknowledge, at_once, in_parts
from worker.claims import Claimed, Ending, Endings, StreamBehind, Taken
from worker.link import Link, Request
from worker.messages import Call, check_finished, read_claims
from worker.meter import Meter
from worker.queue import CLAIM, FINISH, ClaimQueue

LOOK_AGAIN = b"look"
"""A ring that says nothing more than that something may wait anywhere."""


class Received(Struct, frozen=True):
    """What was acknowledged, and what was claimed."""

    acknowledged: Sequence[Claimed]
    taken: Taken


class Exchange:
    """One batch's acknowledgement at most is on its way, and behind it one claim at most, on a connection of their own.

    The server executes them in this order. A claim counts on that acknowledgement (what it says is held would be
    wrong otherwise), so the answer to one behind an acknowledgement that did not go through is not used: the script
    gives out again what was claimed so.
    """

    def __init__(
        self, redis: Redis, queue: ClaimQueue, store: SidecarStore, worker_id: str, generation: int, *, meter: Meter
    ) -> None:
        self._meter = meter
        self._link = Link(redis, greeting=(CLAIM.load(), FINISH.load()))
        self._queue = queue
        self._store = store
        self._wake = keys.wake(worker_id)
        self._generation = generation
        self._ended: Sequence[tuple[Claimed, Ending]] = ()
        self._unconfirmed: Sequence[Endings] = ()
        self._waits = False
        self._claims = False

    @property
    def is_under_way(self) -> bool:
        """Whether there is something to `receive`."""
        return self._link.awaited > 0

    def send(
        self, endings: Sequence[tuple[Claimed, Ending]] = (), claim: Call | None = None, *, wait_s: float = 0.0
    ) -> None:
        """Acknowledge a batch, and claim the next: at once, or when the wake list is rung, or after `wait_s` seconds.

        Raises:
            RedisError: whether any of it was done is unknown.
        """
        requests: list[Request] = []
        if endings:
            *early, last = in_parts(endings)
            for part in early:
                acknowledge(self._queue, self._store, part)
            self._ended, self._unconfirmed = endings, list(at_once(last))
            requests += (FINISH.by_digest(*self._queue.finish_call(some)) for some in self._unconfirmed)
            reach(CrashPoint.BEFORE_ACKNOWLEDGEMENT)
        if claim is not None:
            self._claims, self._waits = True, wait_s > 0
            if self._waits:
                # Moved onto itself: the script behind it takes it off, together with all others.
                requests.append(("BLMOVE", self._wake, self._wake, "LEFT", "LEFT", f"{wait_s:.3f}"))
            requests.append(CLAIM.by_digest(*claim))
        if requests:
            self._link.send(*requests)

    def receive(self) -> Received:
        """The end of what is under way.

        Raises:
            RedisError: nothing is under way any more, and what of it was done is unknown.
        """
        done, self._ended = [claim for claim, _ in self._ended], ()
        unconfirmed, self._unconfirmed = self._unconfirmed, ()
        waits, self._waits = self._waits, False
        claims, self._claims = self._claims, False
        taken = Taken({}, ())
        try:
            for some in unconfirmed:
                check_finished(some, self._link.receive())
            if done:
                self._meter.acknowledged(done)  # now: the next answer may take its time
            if waits:
                self._link.receive()
            if claims:
                taken = read_claims(self._generation, self._link.receive())
        except (StreamBehind, NoScriptError):
            # Events to be mended first, or scripts to be taught anew: neither is done with more on its way.
            self._link.reset()
            acknowledge(self._queue, self._store, [one for some in unconfirmed for one in chain(*some.values())])
            self._meter.acknowledged(done)
            taken = Taken({}, [LOOK_AGAIN])
        return Received(done, taken)

    def abandon(self) -> None:
        """Whatever is under way does not matter any more; but it is over when this returns, if the server answers."""
        while self._link.awaited:
            with contextlib.suppress(RedisError):  # when the connection breaks, nothing is awaited any more
                self._link.receive()
        self._ended, self._unconfirmed, self._waits, self._claims = (), (), False, False

    def close(self) -> None:
        """Give the connection back."""
        self._link.close()
