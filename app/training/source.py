"""What the store says about the Sessions to export: in which order, and who rated."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from types import TracebackType
from typing import Self

from feedback.errors import MediumUnavailable
from feedback.events import FeedbackPut, decode_event
from persistence.sidecar import SidecarStore, public_url
from persistence.sidecar.store import HISTORY_START

_PAGE = 1000


class SessionOrder:
    """The stored Sessions, ordered by id (its UTF-8 bytes), as they were when this was made.

    The store walks them in the order in which they came. They are sorted in a private database that goes to disk
    when it grows, so that memory does not grow with their number.
    """

    def __init__(self, store: SidecarStore) -> None:
        """Raises StoreUnavailable; MediumUnavailable when there is no room to sort them."""
        self._sorted = sqlite3.connect("", isolation_level=None)
        try:
            self._sorted.execute("CREATE TABLE session (id TEXT PRIMARY KEY) WITHOUT ROWID")
            self._sorted.execute("BEGIN")
            self._sorted.executemany("INSERT OR IGNORE INTO session VALUES (?)", _session_ids(store))
            self._sorted.execute("COMMIT")
        except sqlite3.Error as error:
            self._sorted.close()
            raise MediumUnavailable(f"sorting the Sessions in the temporary directory: {error}") from error
        except BaseException:
            self._sorted.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sorted.close()

    def count(self, *, after: str | None = None) -> int:
        """How many there are, or are left behind one of them."""
        query = "SELECT count(*) FROM session WHERE ?1 IS NULL OR id > ?1"
        (count,) = self._sorted.execute(query, (after,)).fetchone()
        return int(count)

    def after(self, session_id: str | None) -> Iterator[str]:
        """The ids behind one of them (None: all)."""
        query = "SELECT id FROM session WHERE ?1 IS NULL OR id > ?1 ORDER BY id"
        with closing(self._sorted.execute(query, (session_id,))) as rows:
            for (found,) in rows:
                yield found


def place_of(url: str) -> str:
    """Where the store of a `sidecar_url` lies: without user, password and options, which may change under an export."""
    shown = public_url(url)
    scheme, _, rest = shown.partition("://")
    return shown if scheme == "sqlite" else f"{scheme}://{rest.rpartition('@')[2]}"


def actors_of(store: SidecarStore, session_id: str, versions: Collection[str]) -> dict[str, str]:
    """Who wrote these versions of a Session's items, by version.

    Only of writes whose command said so, and whose record is still kept (`command_retention` past its deadline):
    an item that was rated long ago, or imported, has no actor here. Raises StoreUnavailable.
    """
    actors: dict[str, str] = {}
    position = HISTORY_START
    while page := store.history(session_id, position, _PAGE):
        for outcome in page:
            event = decode_event(outcome.event)
            if isinstance(event, FeedbackPut) and event.actor is not None and event.item.version in versions:
                actors[event.item.version] = event.actor
        position = page[-1].position
        if len(page) < _PAGE:
            break
    return actors


def _session_ids(store: SidecarStore) -> Iterator[tuple[str]]:
    place = 0
    while page := store.session_ids(place, _PAGE):
        yield from ((session_id,) for _, session_id in page)
        place = page[-1][0]
