"""What the answers to queries are, given cache, store and Session logs.

A list is never older than what was committed before the question was asked: a cached list counts only
when the store says that its revision is the current one.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from feedback.commands import parse_command_id
from feedback.errors import CommandFailed, FeedbackError, StoreUnavailable
from feedback.events import decode_event, result_of
from feedback.failures import Failure, failure_of
from feedback.model import SessionIdentity
from feedback.queries import Answer, Answered, Failed, ListQuery, OutcomeQuery, Unknown
from feedback.results import ItemList, Ok, Rejected, SessionNotFound
from persistence.sidecar.store import SidecarStore
from projections.cache import ListCache
from projections.fold import CachedList
from projections.resolving import Found
from projections.views import load, possible


class NotYet(Struct, frozen=True):
    """The store has not reached the revision that the query asks for; it is at this one."""

    revision: int


class Answers:
    """Answers batches of queries; for one thread. Every method may raise `RedisError`."""

    def __init__(self, cache: ListCache, store: SidecarStore) -> None:
        self._cache = cache
        self._store = store

    def lists(self, resolved: Sequence[tuple[ListQuery, Found]]) -> list[Answer | NotYet]:
        """One answer per query, from one look at cache and store."""
        identities = {query.session_id: found for query, found in resolved if isinstance(found, SessionIdentity)}
        try:
            current = self._current(identities)
        except StoreUnavailable as error:
            return [Failed(failure_of(error))] * len(resolved)
        return [self._list(query, found, current.get(query.session_id)) for query, found in resolved]

    def outcome(self, query: OutcomeQuery) -> Answer:
        """The recorded answer to a command."""
        try:
            record = self._store.record(parse_command_id(query.command_id))
            if record is None:
                return Unknown()
            event = decode_event(record.event)
        except FeedbackError as error:
            return Failed(failure_of(error))
        except msgspec.MsgspecError:
            return Failed(failure_of(CommandFailed("the record was written by a newer program: upgrade the projector")))
        return Answered(result=msgspec.to_builtins(result_of(event)), revision=event.revision)

    def reached(self, queries: Sequence[ListQuery]) -> dict[str, int]:
        """Session id -> the revision that the store is at; what was never stored is missing.

        Raises:
            StoreUnavailable: the store could not be read.
        """
        rows = self._store.stored_sessions(tuple({query.session_id for query in queries}))
        return {session_id: row.revision for session_id, row in rows.items()}

    def _current(self, identities: Mapping[str, SessionIdentity]) -> dict[str, CachedList]:
        """The current list of each of these Sessions that has a row; without items where that is of another life."""
        if not identities:
            return {}
        # The cache first: what it holds was committed, so the store read later cannot be behind it.
        snapshot = self._cache.read(tuple(identities))
        rows = self._store.stored_sessions(tuple(identities))
        self._cache.drop(key for key, view in snapshot.views.items() if not possible(view, rows.get(key)))
        current: dict[str, CachedList] = {}
        fills: list[CachedList] = []
        for session_id, row in rows.items():
            view = snapshot.views.get(session_id)
            if row.identity != identities[session_id]:
                view = CachedList(session_id=session_id, identity=row.identity, revision=row.revision, items=())
            elif view is None or view.revision != row.revision or view.identity != row.identity:
                view = load(self._store, session_id)
                fills += [view] if view else []
            if view is not None:
                current[session_id] = view
        if fills:
            self._cache.store(snapshot.era, fills)
        return current

    def _list(self, query: ListQuery, found: Found, view: CachedList | None) -> Answer | NotYet:
        match found:
            case None:
                rejected = Rejected(error=SessionNotFound(session_id=query.session_id))
                return Answered(result=msgspec.to_builtins(rejected), revision=None)
            case Failure():
                return Failed(found)
            case SessionIdentity():
                revision = view.revision if view else 0
                if query.at_least is not None and revision < query.at_least:
                    return NotYet(revision)
                # A row may have been replaced by one of another life since it was looked at.
                items = view.items if view and view.identity == found else ()
                return Answered(result=msgspec.to_builtins(Ok(value=ItemList(items=items))), revision=revision)
