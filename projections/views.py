"""Views after a batch of events: folded from what is cached, loaded from the store where that does not suffice."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from feedback.events import Event
from feedback.lists import CachedList
from persistence.sidecar.store import SidecarStore, StoredSession
from projections.cache import ListCache, Snapshot
from projections.fold import Gap, View, fold


class Changed(Struct, frozen=True):
    """Views to be cached: the era in which they were made, and of which Sessions the latest revision was noted then."""

    era: bytes
    views: Sequence[CachedList]
    noted: frozenset[str]


class Views:
    """Makes views; nothing is written to the cache but the removal of what is false."""

    def __init__(self, cache: ListCache, store: SidecarStore) -> None:
        self._cache = cache
        self._store = store

    def after(self, events: Mapping[str, Sequence[Event]]) -> Changed:
        """The views that these events change: session id -> its events, in order.

        Raises:
            StoreUnavailable, RedisError: nothing was changed.
        """
        # The cache first: what it holds was committed, so the store read later cannot be behind it.
        snapshot = self._cache.read(tuple(events))
        cached = snapshot.views
        folded = {session_id: fold(cached.get(session_id), of_one) for session_id, of_one in events.items()}
        unsure = {session_id for session_id, view in folded.items() if isinstance(view, Gap)}
        unsure |= self._contradicted(
            {key: view for key, view in cached.items() if view.revision > events[key][-1].revision}
        )
        changed = [
            view
            for key, view in folded.items()
            if isinstance(view, CachedList) and key not in unsure and view is not cached.get(key)
        ]
        reloaded, dropped = self._reloaded(unsure, snapshot)
        return Changed(snapshot.era, changed + reloaded, frozenset(snapshot.latest) - dropped)

    def _contradicted(self, ahead: Mapping[str, CachedList]) -> set[str]:
        """Of views that are ahead of their events: those that are no reader's work, but somebody's poison."""
        if not ahead:
            return set()
        stored = self._store.stored_sessions(tuple(ahead))
        return {key for key, view in ahead.items() if not possible(view, stored.get(key))}

    def _reloaded(self, session_ids: Iterable[str], snapshot: Snapshot) -> tuple[list[CachedList], set[str]]:
        """These Sessions' views as the store has them, and whose entries were dropped for it."""
        loaded = {session_id: load(self._store, session_id) for session_id in session_ids}
        # What claims to be as new as the truth, or newer, would not be replaced.
        dropped = {
            key
            for key, view in loaded.items()
            if (cached := snapshot.views.get(key)) and (view is None or cached.revision >= view.revision)
        }
        self._cache.drop(dropped)
        return [view for view in loaded.values() if view is not None], dropped


def possible(view: CachedList, stored: StoredSession | None) -> bool:
    """Whether a cached view can stem from the history of a row that was read after it."""
    if stored is None:
        return view.revision == 0
    if view.revision > stored.revision:
        return False
    return view.revision < stored.revision or view.identity == stored.identity


def load(store: SidecarStore, session_id: str) -> View:
    """A Session's list as the store has it; None when nothing was ever stored."""
    stored = store.feedback(session_id)
    if stored is None:
        return None
    return CachedList(session_id=session_id, identity=stored.identity, revision=stored.revision, items=stored.items)
