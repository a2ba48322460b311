"""Exporting: what the sidecar store holds, written to a medium of the original.

Each Session is exported as it is when it is read, so the store is not held up, and one that is stored for the first
time meanwhile may be missing. Memory: the largest Session, and for `Form.JSON` the ids that are array indices.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from persistence.interchange.media import Form, write_documents, write_whole
from persistence.interchange.rows import (
    MOST_LISTED,
    TABLE,
    Outcome,
    RecordInvalid,
    Refusal,
    Row,
    Wrote,
    check_unique,
    is_index,
    quoted,
)
from persistence.sidecar.store import SidecarStore

_PAGE = 1000


class ExportReport(Struct, frozen=True):
    """`sessions` and `items` are in the medium now, `unchanged` of the Sessions were before; `refused` Sessions or
    documents are not in order, of which `refusals` are the first `MOST_LISTED`."""

    sessions: int
    items: int
    unchanged: int
    refused: int
    refusals: tuple[Refusal, ...]


def export(store: SidecarStore, form: Form, path: Path, *, overwrite: bool, check: bool, now: datetime) -> ExportReport:
    """Write all that is stored, in a stable order; with `check`, nothing, but report what would be.

    Raises:
        StoreUnavailable: the store could not be read. Nothing was written, or, of documents, some.
        InvalidRequest, MediumUnavailable: as `write_whole` and `write_documents`, which say what `overwrite` means.
    """
    tally = _Tally()
    if form is Form.PER_RECORD:
        rows = tally.sound(_stored(store))
        for row, outcome in write_documents(path, rows, overwrite=overwrite, now=now, check=check):
            tally.note(row, outcome)
    else:
        stored = _stored(store) if form is Form.SQLITE else _stored_in_key_order(store)
        write_whole(form, path, tally.written(tally.sound(stored)), overwrite=overwrite, check=check)
    return tally.report()


class _Tally:
    """Counts what goes by."""

    def __init__(self) -> None:
        self._sessions = self._items = self._unchanged = self._refused = 0
        self._refusals: list[Refusal] = []

    def sound(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that the original takes: for one that it does not, it would refuse the whole medium."""
        for row in rows:
            try:
                check_unique(row)
            except RecordInvalid as error:
                self._refuse(Refusal(f"{TABLE}[{quoted(row.session_id)}]{error.path}", error.reason))
            else:
                yield row

    def written(self, rows: Iterable[Row]) -> Iterator[Row]:
        """These rows, counted as written."""
        for row in rows:
            self.note(row, Wrote.NOW)
            yield row

    def note(self, row: Row | None, outcome: Outcome) -> None:
        """Count a row by what became of it."""
        if isinstance(outcome, Refusal):
            self._refuse(outcome)
        elif row is not None:
            self._sessions += 1
            self._items += len(row.items)
            self._unchanged += outcome is Wrote.ALREADY

    def report(self) -> ExportReport:
        return ExportReport(self._sessions, self._items, self._unchanged, self._refused, tuple(self._refusals))

    def _refuse(self, refusal: Refusal) -> None:
        self._refused += 1
        if len(self._refusals) < MOST_LISTED:
            self._refusals.append(refusal)


def _stored(store: SidecarStore) -> Iterator[Row]:
    """Every Session, in the order in which they were first stored."""
    return _loaded(store, _ids(store))


def _stored_in_key_order(store: SidecarStore) -> Iterator[Row]:
    """As `_stored`, but those whose ids are array indices first, ascending."""
    yield from _loaded(store, map(str, sorted(int(session_id) for session_id in _ids(store) if is_index(session_id))))
    yield from _loaded(store, (session_id for session_id in _ids(store) if not is_index(session_id)))


def _ids(store: SidecarStore) -> Iterator[str]:
    place = 0
    while page := store.session_ids(place, _PAGE):
        yield from (session_id for _, session_id in page)
        place = page[-1][0]


def _loaded(store: SidecarStore, session_ids: Iterable[str]) -> Iterator[Row]:
    for session_id in session_ids:
        if (stored := store.feedback(session_id)) is not None:
            yield Row(session_id, stored.identity, stored.items)
