"""The loop's exchange with the server: acknowledgements go out and claims come in while the next batch is worked on."""

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

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


class _Acknowledgement(Struct, frozen=True):
    """A batch's ends, ready to be sent: parts that go out one by one before, then runs of the script, back to back."""

    endings: Sequence[tuple[Claimed, Ending]]
    early: Sequence[Sequence[tuple[Claimed, Ending]]]
    runs: Sequence[Endings]
    requests: Sequence[Request]


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
        self._ready: _Acknowledgement | None = None
        self._sent: _Acknowledgement | None = None
        self._waits = False
        self._claims = False

    @property
    def is_under_way(self) -> bool:
        """Whether there is something to `receive`."""
        return self._link.awaited > 0

    def acknowledge(self, endings: Sequence[tuple[Claimed, Ending]]) -> None:
        """Acknowledge a batch: at once, or as soon as what is under way has come.

        It is made ready now, while the server is at that; and sent before what has come is looked at.

        Raises:
            RedisError, StoreUnavailable: whether any of it was done is unknown.
        """
        if not endings:
            return
        *early, last = in_parts(endings)
        runs = list(at_once(last))
        requests = [FINISH.by_digest(*self._queue.finish_call(run)) for run in runs]
        self._ready = _Acknowledgement(endings, early, runs, requests)
        if not self.is_under_way:
            self._send_ready()

    def claim(self, call: Call, *, wait_s: float = 0.0) -> None:
        """Claim, behind what was sent before: at once, or when the wake list is rung, or after `wait_s` seconds.

        Raises:
            RedisError: whether anything was claimed is unknown.
        """
        self._claims, self._waits = True, wait_s > 0
        requests = [CLAIM.by_digest(*call)]
        if self._waits:
            # Moved onto itself: the script behind it takes it off, together with all others.
            requests.insert(0, ("BLMOVE", self._wake, self._wake, "LEFT", "LEFT", f"{wait_s:.3f}"))
        self._link.send(*requests)

    def receive(self) -> Received:
        """The end of what is under way; an acknowledgement that was held back is under way then.

        Raises:
            RedisError, StoreUnavailable: nothing is under way any more, and what of it was done is unknown.
        """
        sent, self._sent = self._sent, None
        waits, self._waits = self._waits, False
        claims, self._claims = self._claims, False
        reply: Sequence[Any] | None = None
        rings: list[bytes] = []
        unconfirmed = deque(() if sent is None else sent.runs)
        try:
            while unconfirmed:
                check_finished(unconfirmed[0], self._link.receive())
                self._told(chain(*unconfirmed.popleft().values()))  # now: the next answer may take its time
            if waits:
                self._link.receive()
            if claims:
                reply = self._link.receive()
        except (StreamBehind, NoScriptError):
            # Events to be mended first, or scripts to be taught anew: neither is done with more on its way.
            self._link.reset()
            self._acknowledge([ended for run in unconfirmed for ended in chain(*run.values())])
            rings = [LOOK_AGAIN]
        self._send_ready()
        done = [] if sent is None else [claim for claim, _ in sent.endings]
        return Received(done, Taken({}, rings) if reply is None else read_claims(self._generation, reply))

    def abandon(self) -> None:
        """Whatever is under way does not matter any more; but it is over when this returns, if the server answers."""
        while self._link.awaited:
            with contextlib.suppress(RedisError):  # when the connection breaks, nothing is awaited any more
                self._link.receive()
        self._ready = self._sent = None
        self._waits = self._claims = False

    def close(self) -> None:
        """Give the connection back."""
        self._link.close()

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is None:
            return
        for part in ready.early:
            self._acknowledge(part)
        reach(CrashPoint.BEFORE_ACKNOWLEDGEMENT)
        self._link.send(*ready.requests)
        self._sent = ready

    def _acknowledge(self, endings: Sequence[tuple[Claimed, Ending]]) -> None:
        """Acknowledge while nothing else is under way, mending what is in the way."""
        if endings:
            acknowledge(self._queue, self._store, endings)
            self._told(endings)

    def _told(self, endings: Iterable[tuple[Claimed, Ending]]) -> None:
        self._meter.acknowledged([claim for claim, _ in endings])
