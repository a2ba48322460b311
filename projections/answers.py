"""What the answers to queries are, given cache, store and Session logs.

A list is never older than what was committed before the question was asked: a cached list counts only
when the store says that its revision is the current one.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeAlias

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
from projections.views import load, possible


class IdentitySource(Protocol):
    """Tells which life a Session is in. Called from several threads."""

    def identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, None when there is no such Session.

        Raises:
            LogFailure: the Session's log cannot be inspected.
        """
        ...


class NotYet(Struct, frozen=True):
    """The store has not reached the revision that the query asks for; it is at this one."""

    revision: int


_Found: TypeAlias = SessionIdentity | Failure | None


class Answers:
    """Answers batches of queries; for one thread. Every method may raise `RedisError`."""

    def __init__(self, cache: ListCache, store: SidecarStore, identities: IdentitySource, threads: Executor) -> None:
        """`threads` read the Session logs of one batch side by side."""
        self._cache = cache
        self._store = store
        self._identities = identities
        self._threads = threads

    def lists(self, queries: Sequence[ListQuery]) -> list[Answer | NotYet]:
        """One answer per query, from one look at cache and store."""
        session_ids = tuple(dict.fromkeys(query.session_id for query in queries))
        # Resolving may read a log; one that is known costs a stat, which no thread switch is worth.
        resolved = (
            map(self._resolve, session_ids) if len(session_ids) == 1 else self._threads.map(self._resolve, session_ids)
        )
        found = dict(zip(session_ids, resolved, strict=True))
        try:
            current = self._current({key: one for key, one in found.items() if isinstance(one, SessionIdentity)})
        except StoreUnavailable as error:
            return [Failed(failure_of(error))] * len(queries)
        return [self._list(query, found[query.session_id], current.get(query.session_id)) for query in queries]

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

    def _resolve(self, session_id: str) -> _Found:
        try:
            return self._identities.identity(session_id)
        except FeedbackError as error:
            return failure_of(error)

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

    def _list(self, query: ListQuery, found: _Found, view: CachedList | None) -> Answer | NotYet:
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
