"""Which of the queries that were taken are answered: those that somebody may still be waiting for."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.dropped import Dropped, Reason
from feedback.queries import Envelope, Query, decode_envelope, decode_query
from projections.meter import Meter

logger = logging.getLogger(__name__)

_MAX_QUERY_BYTES = 2**20
_SLACK_MS = 1000 * keys.REPLY_TTL_S
"""What clocks may differ by: other requests carry it in their deadlines, too."""

Taken: TypeAlias = tuple[list[Query], list[str]]
"""Queries to be answered, and the ids of those that a newer client asks and that are not understood."""


class Intake:
    """Reads queries. One past its deadline is answered, as its asker's clock may be behind, except when many wait.

    A question cannot have waited for longer than since no more were waiting. Where that explains how late it is, nobody
    waits for the answer any more, and those behind it would be answered too late as well.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`clock` gives seconds, `wall_ms` milliseconds since the epoch."""
        self._dropped = Dropped("projector", meter.dropped)
        self._clock = clock
        self._wall_ms = wall_ms
        self._drained_s = float("-inf")

    def read(self, documents: Iterable[bytes], *, are_all: bool) -> Taken:
        """What becomes of documents that were taken; `are_all`: none waited behind them."""
        now_s, now_ms = self._clock(), self._wall_ms()
        if are_all:
            self._drained_s = now_s
        behind_ms = 1000 * (now_s - self._drained_s)
        queries: list[Query] = []
        unknown: list[str] = []
        for document in documents:
            found = self._decoded(document)
            if found is None or not self._is_waited_for(found, now_ms, behind_ms):
                continue
            if isinstance(found, Envelope):
                unknown.append(found.query_id)
            else:
                queries.append(found)
        return queries, unknown

    def _decoded(self, document: bytes) -> Query | Envelope | None:
        """A newer client would wait in vain, so it is told; garbage has nobody who waits."""
        if len(document) > _MAX_QUERY_BYTES:
            self._dropped.note(Reason.MALFORMED, f"{len(document)} bytes")
            return None
        try:
            return decode_query(document)
        except msgspec.MsgspecError as error:
            reason = str(error)
        try:
            envelope = decode_envelope(document)
        except msgspec.MsgspecError:
            self._dropped.note(Reason.MALFORMED, reason)
            return None
        logger.warning("query not understood reason=%s", reason)
        return envelope

    def _is_waited_for(self, query: Query | Envelope, now_ms: int, behind_ms: float) -> bool:
        late_ms = now_ms - query.deadline
        if late_ms < 0 or behind_ms <= late_ms < _SLACK_MS:
            return True
        self._dropped.note(Reason.OVERDUE, f"{late_ms / 1000:.1f} s past its deadline")
        return False
