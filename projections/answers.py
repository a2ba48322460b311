"""What the answers to queries are, given cache, store and Session logs.

A list is never older than what was committed before the question was asked: a remembered or cached list counts
only when the store says that its revision is the current one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from feedback.commands import parse_command_id
from feedback.errors import CommandExpired, CommandFailed, FeedbackError, StoreUnavailable
from feedback.events import decode_event, result_of
from feedback.failures import Failure, failure_of
from feedback.lists import CachedList
from feedback.model import Item, SessionIdentity
from feedback.queries import Answered, Failed, ListQuery, OutcomeQuery, Unknown, encode_answer
from feedback.results import ItemList, Ok, Rejected, SessionNotFound
from persistence.sidecar.store import SidecarStore, StoredSession
from projections.cache import ListCache, Snapshot
from projections.looking import Found
from projections.meter import Meter
from projections.views import load, possible

_MOST_REMEMBERED_BYTES = 16 * 2**20
_ENTRY_BYTES = 512
_FILL_ATTEMPTS = 5
_OFF = Meter()


class NotYet(Struct, frozen=True):
    """The store has not reached the revision that the query asks for; it is at this one."""

    revision: int


class Remembered:
    """Encoded answers by Session, each with the row of the store that it was made of; the least recently used go."""

    def __init__(self, most_bytes: int = _MOST_REMEMBERED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[str, tuple[StoredSession, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, session_id: str, row: StoredSession) -> bytes | None:
        """The answer that is made of this row."""
        known = self._answers.get(session_id)
        if known is None or known[0] != row:
            return None
        self._answers.move_to_end(session_id)
        return known[1]

    def put(self, session_id: str, row: StoredSession, answer: bytes) -> None:
        """Remember an answer in place of an older one."""
        former = self._answers.pop(session_id, None)
        self._answers[session_id] = row, answer
        self._bytes += _ENTRY_BYTES + len(answer) - (_ENTRY_BYTES + len(former[1]) if former else 0)
        while self._bytes > self._most_bytes:
            _, (_, freed) = self._answers.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + len(freed)


class Answers:
    """Answers batches of queries, encoded as they go out; for one thread. Every method may raise `RedisError`."""

    def __init__(self, cache: ListCache, store: SidecarStore, meter: Meter = _OFF) -> None:
        self._cache = cache
        self._meter = meter
        self._store = store
        self._remembered = Remembered()
        self._era: bytes | None = None

    def go_on_in(self, era: bytes | None) -> None:
        """Forget what was remembered in another era of the cached lists (None: there is none): a store that lost
        commits may have the same revision again, of another history."""
        if era != self._era:
            self._era, self._remembered = era, Remembered()

    def lists(self, resolved: Sequence[tuple[ListQuery, Found]]) -> list[bytes | NotYet]:
        """One answer per query, from one look at the store, and one at the cache for what is not remembered."""
        try:
            return self._lists(resolved)
        except StoreUnavailable as error:
            return [failed(error)] * len(resolved)

    def outcome(self, query: OutcomeQuery) -> bytes:
        """The recorded answer to a command."""
        try:
            record = self._store.record(parse_command_id(query.command_id))
            if record is None:
                return encode_answer(Unknown())
            if record.is_expired:
                return failed(CommandExpired(f"the deadline of command {query.command_id} passed; nothing was applied"))
            event = decode_event(record.event)
        except FeedbackError as error:
            return failed(error)
        except msgspec.MsgspecError:
            return failed(CommandFailed("the record was written by a newer program: upgrade the projector"))
        # It may not have been acknowledged: whoever asked may read cached lists without the store next.
        self._cache.note({event.session_id: event.revision})
        return encode_answer(Answered(result=result_of(event), revision=event.revision))

    def reached(self, queries: Sequence[ListQuery]) -> dict[str, int]:
        """Session id -> the revision that the store is at; what was never stored is missing.

        Raises:
            StoreUnavailable: the store could not be read.
        """
        rows = self._store.stored_sessions(tuple({query.session_id for query in queries}))
        return {session_id: row.revision for session_id, row in rows.items()}

    def _lists(self, resolved: Sequence[tuple[ListQuery, Found]]) -> list[bytes | NotYet]:
        there = {query.session_id: found for query, found in resolved if isinstance(found, SessionIdentity)}
        rows = dict(self._store.stored_sessions(tuple(there))) if there else {}
        answers = {key: answer for key, row in rows.items() if (answer := self._remembered.get(key, row)) is not None}
        # Whoever missed it in the cache will find it there the next time.
        missed = {query.session_id for query, _ in resolved if query.missed}
        wanted = {key: found for key, found in there.items() if key in missed or (key in rows and key not in answers)}
        self._meter.looked_up(memory=len(answers.keys() - missed) if missed else len(answers))
        for key, view in self._current(wanted, rows).items() if wanted else ():
            rows[key] = StoredSession(view.identity, view.revision)
            answers[key] = _listed(view.items, view.revision)
            self._remembered.put(key, rows[key], answers[key])
        return [
            _answer(query, found, rows.get(query.session_id), answers.get(query.session_id))
            for query, found in resolved
        ]

    def _current(
        self, wanted: Mapping[str, SessionIdentity], rows: Mapping[str, StoredSession]
    ) -> dict[str, CachedList]:
        """The lists of these Sessions, current since `rows` were read, and cached from here on: who reads there sees
        no older ones.

        Raises:
            StoreUnavailable: the store could not be read.
        """
        for _ in range(_FILL_ATTEMPTS):
            snapshot = self._cache.read(tuple(wanted))
            false = self._false(wanted, snapshot, rows)
            self._cache.drop(false)
            views: dict[str, CachedList] = {}
            fills: list[CachedList] = []
            for key, identity in wanted.items():
                cached = snapshot.views.get(key)
                if cached is not None and key not in false and _is_current(cached, rows.get(key), snapshot.latest):
                    views[key] = cached
                else:
                    views[key] = load(self._store, key) or _unrated(key, identity)
                    fills.append(views[key])
            if not fills or self._cache.store(snapshot.era, fills, noted=snapshot.latest.keys() - false):
                self._meter.looked_up(cache=len(views) - len(fills), store=len(fills))
                return views
        raise StoreUnavailable("the cached lists are being made anew again and again")

    def _false(self, session_ids: Iterable[str], snapshot: Snapshot, rows: Mapping[str, StoredSession]) -> set[str]:
        """Whose entries cannot stem from the history of the store's rows."""
        ahead = [key for key in session_ids if not _possible(key, snapshot, rows.get(key))]
        # What was cached was committed before, so a row that is read now is not behind it.
        later = self._store.stored_sessions(tuple(ahead)) if ahead else {}
        return {key for key in ahead if not _possible(key, snapshot, later.get(key))}


def failed(error: FeedbackError) -> bytes:
    """The answer that says why there is none."""
    return encode_answer(Failed(failure_of(error)))


def _possible(session_id: str, snapshot: Snapshot, row: StoredSession | None) -> bool:
    """Whether what was cached can stem from the history of the row, which was read after it."""
    view = snapshot.views.get(session_id)
    committed = row.revision if row else 0
    return snapshot.latest.get(session_id, 0) <= committed and (view is None or possible(view, row))


def _is_current(view: CachedList, row: StoredSession | None, latest: Mapping[str, int]) -> bool:
    """Whether the view is the row's, and noted as the latest, so that who reads without the store takes it."""
    is_of_row = view.revision == 0 if row is None else (view.revision, view.identity) == (row.revision, row.identity)
    return is_of_row and latest.get(view.session_id) == view.revision


def _unrated(session_id: str, identity: SessionIdentity) -> CachedList:
    """The list of a Session that nobody has rated, in whatever life."""
    return CachedList(session_id=session_id, identity=identity, revision=0, items=())


def _listed(items: Sequence[Item], revision: int) -> bytes:
    return encode_answer(Answered(result=Ok(value=ItemList(items=tuple(items))), revision=revision))


def _answer(query: ListQuery, found: Found, row: StoredSession | None, answer: bytes | None) -> bytes | NotYet:
    match found:
        case None:
            rejected = Rejected(error=SessionNotFound(session_id=query.session_id))
            return encode_answer(Answered(result=rejected, revision=None))
        case Failure():
            return encode_answer(Failed(found))
        case SessionIdentity():
            revision = row.revision if row else 0
            if query.at_least is not None and revision < query.at_least:
                return NotYet(revision)
            # Only items of the current life; a row may have been replaced by one of another since it was looked at.
            return answer if answer is not None and row and row.identity == found else _listed((), revision)
