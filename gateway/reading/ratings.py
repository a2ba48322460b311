"""What is rated in each Session, kept beside the store: counts for lists and filters, and what an overview adds up.

The store is the truth. It is asked what changed: its outcomes since the last time, and from time to time every
Session's revision, which also finds what no outcome tells (imports, a store that was moved).
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from feedback.errors import FeedbackError, ShuttingDown
from feedback.events import decode_event
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar import SidecarStore, find_store
from persistence.sidecar.store import StoredTopology

_PAGE = 1000
_OUTCOMES = 1000
_WALK_EVERY_S = 30.0
_AGAIN_S = 2.0
_MS_PER_DAY = 24 * 3600 * 1000

_log = logging.getLogger(__name__)


class RatedItem(Struct, frozen=True, gc=False):
    """What an overview needs of one item. `day`: days since the Unix epoch, UTC, of its last change."""

    message_id: str
    is_positive: bool
    day: int


class Rated(Struct, frozen=True):
    """One Session's standing ratings; `notes` counts the items that have one."""

    identity: SessionIdentity
    revision: int
    positive: int
    negative: int
    notes: int
    items: tuple[RatedItem, ...]


class RatingIndex:
    """Every rated Session. For one thread at a time. Memory: some 150 bytes an item."""

    def __init__(self, store: SidecarStore) -> None:
        self._store = store
        self._sessions: dict[str, Rated] = {}
        self._topology: StoredTopology | None = None
        self._heads: dict[PartitionId, int] = {}
        self._walked_at: float | None = None

    def sessions(self) -> Mapping[str, Rated]:
        """Rated Sessions by id, as of now. Raises StoreUnavailable."""
        self._refresh()
        return self._sessions.copy()

    def _refresh(self) -> None:
        topology = self._store.topology()
        heads = self._store.heads(_partitions(topology)) if topology else {}
        now = time.monotonic()
        is_due = self._walked_at is None or now - self._walked_at >= _WALK_EVERY_S
        changed = None if is_due or topology != self._topology else self._changed_since(heads)
        if changed is None:
            self._walk()
            self._walked_at = now
        else:
            for session_id in changed:
                self._load(session_id)
        self._topology, self._heads = topology, heads

    def _changed_since(self, heads: Mapping[PartitionId, int]) -> set[str] | None:
        """Which Sessions' outcomes came since the last look; None when there are too many, or they are gone."""
        found = set[str]()
        for partition, head in heads.items():
            known = self._heads.get(partition, 0)
            if head == known:
                continue
            outcomes = self._store.outcomes(partition, known, _OUTCOMES)
            if head < known or not outcomes or outcomes[0][0] != known + 1 or outcomes[-1][0] < head:
                return None
            try:
                found.update(decode_event(event).session_id for _, event in outcomes)
            except msgspec.MsgspecError:
                return None
        return found

    def _walk(self) -> None:
        place, seen = 0, set[str]()
        while page := self._store.session_ids(place, _PAGE):
            ids = [session_id for _, session_id in page]
            for session_id, stored in self._store.stored_sessions(ids).items():
                known = self._sessions.get(session_id)
                if known is None or (known.revision, known.identity) != (stored.revision, stored.identity):
                    self._load(session_id)
            seen.update(ids)
            place = page[-1][0]
        for session_id in self._sessions.keys() - seen:
            del self._sessions[session_id]

    def _load(self, session_id: str) -> None:
        stored = self._store.feedback(session_id)
        if stored is None:
            self._sessions.pop(session_id, None)
        else:
            self._sessions[session_id] = _rated(stored.identity, stored.revision, stored.items)


class Ratings:
    """What is rated in the store at a URL, once there is one. Thread-safe.

    A store that failed is asked again a while later, by one thread. All others are told at once: else each would wait
    for a store that is silent, one after the other, and what needs no ratings with them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._asking = threading.Lock()
        self._owning = threading.Lock()
        self._store: SidecarStore | None = None
        self._index: RatingIndex | None = None
        self._failure: FeedbackError | None = None
        self._again_at = 0.0
        self._closed = False

    def sessions(self) -> Mapping[str, Rated] | None:
        """Rated Sessions by id; None where there is no store. Raises StoreUnavailable, ShuttingDown."""
        before = self._failure
        if before is None:
            self._asking.acquire()
        elif time.monotonic() < self._again_at or not self._asking.acquire(blocking=False):
            raise before.with_traceback(None)  # it is raised many times
        try:
            if before is None and self._failure is not None:  # while this one waited
                raise self._failure.with_traceback(None)
            return self._ask()
        finally:
            self._asking.release()

    def close(self) -> None:
        """Release connections and files; whoever asks is told."""
        with self._owning:
            self._closed = True
            if self._store is not None:
                self._store.close()

    def _ask(self) -> Mapping[str, Rated] | None:
        if self._closed:
            raise ShuttingDown
        try:
            index = self._opened()
            found = None if index is None else index.sessions()
        except ShuttingDown:
            raise
        except FeedbackError as failure:
            self._failure, self._again_at = failure, time.monotonic() + _AGAIN_S
            _log.warning("ratings cannot be read code=%s reason=%s", failure.code, failure)
            raise
        self._failure = None
        return found

    def _opened(self) -> RatingIndex | None:
        if self._index is None and (store := find_store(self._url)) is not None:
            with self._owning:
                if self._closed:
                    store.close()
                    raise ShuttingDown
                self._store, self._index = store, RatingIndex(store)
        return self._index


def _rated(identity: SessionIdentity, revision: int, items: Iterable[Item]) -> Rated:
    kept = tuple(items)
    positive = sum(item.rating == "positive" for item in kept)
    return Rated(
        identity=identity,
        revision=revision,
        positive=positive,
        negative=len(kept) - positive,
        notes=sum(item.note is not None for item in kept),
        items=tuple(
            RatedItem(item.message_id, item.rating == "positive", item.updated_at // _MS_PER_DAY) for item in kept
        ),
    )


def _partitions(topology: StoredTopology) -> list[PartitionId]:
    generations = [(topology.generation, topology.partitions)]
    if not topology.retired:
        generations.append((topology.generation - 1, topology.former))
    return [PartitionId(generation, number) for generation, count in generations for number in range(count)]
