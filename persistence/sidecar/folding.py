"""What a batch's changes come to: one row written per Session and item, however often the batch touches it. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, assert_never

from msgspec import Struct

from feedback.model import Item
from persistence.sidecar.store import Change, DeleteItem, PutItem, StartSession, StoredSession

ItemKey: TypeAlias = tuple[str, str]
"""Session id and message id."""


class PlacedItem(Struct, frozen=True):
    """An item, and the position that it gets if it is a new one."""

    item: Item
    position: int


class Folded(Struct, frozen=True):
    """To be written in this order; what is removed may not be there, what is put may replace what is."""

    started: Mapping[str, StoredSession]
    """Sessions that have no row yet."""
    changed: Mapping[str, StoredSession]
    """Sessions whose row becomes another."""
    emptied: Sequence[str]
    """Sessions that lose all their stored items."""
    removed: Sequence[ItemKey]
    put: Mapping[ItemKey, PlacedItem]


def fold(changes: Sequence[Change], stored: Mapping[str, StoredSession]) -> Folded:
    """Fold changes, which apply in order, over the rows of the Sessions that they touch (missing: no row).

    Raises:
        ValueError: a change of a Session without a row.
    """
    folding = _Folding(stored)
    for change in changes:
        if isinstance(change, StartSession):
            folding.start(change)
        elif isinstance(change, PutItem):
            folding.put(change)
        elif isinstance(change, DeleteItem):
            folding.delete(change)
        else:
            assert_never(change)
    return folding.result()


class _Folding:
    def __init__(self, stored: Mapping[str, StoredSession]) -> None:
        self._stored = stored
        self._rows = dict(stored)
        self._emptied: dict[str, None] = {}
        self._removed: dict[ItemKey, None] = {}
        self._put: dict[ItemKey, PlacedItem] = {}

    def start(self, change: StartSession) -> None:
        row = self._rows.get(change.session_id)
        if row is not None and row.identity == change.identity:
            return
        self._rows[change.session_id] = StoredSession(change.identity, 0 if row is None else row.revision)
        if row is not None:
            self._emptied[change.session_id] = None
            self._put = {key: placed for key, placed in self._put.items() if key[0] != change.session_id}

    def put(self, change: PutItem) -> None:
        self._advance(change.session_id, change.revision)
        key = change.session_id, change.item.message_id
        earlier = self._put.get(key)
        self._put[key] = PlacedItem(change.item, change.revision if earlier is None else earlier.position)

    def delete(self, change: DeleteItem) -> None:
        self._advance(change.session_id, change.revision)
        key = change.session_id, change.message_id
        self._put.pop(key, None)
        self._removed[key] = None

    def result(self) -> Folded:
        touched = {name: row for name, row in self._rows.items() if row != self._stored.get(name)}
        return Folded(
            started={name: row for name, row in touched.items() if name not in self._stored},
            changed={name: row for name, row in touched.items() if name in self._stored},
            emptied=[name for name in self._emptied if name in self._stored],
            removed=[key for key in self._removed if key[0] in self._stored and key[0] not in self._emptied],
            put=self._put,
        )

    def _advance(self, session_id: str, revision: int) -> None:
        row = self._rows.get(session_id)
        if row is None:
            raise ValueError(f"Session {session_id!r} has no row; start it first")
        self._rows[session_id] = StoredSession(row.identity, revision)
