"""Summaries of all Sessions under a root, kept by file revision and searched by text, project and model."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from feedback.errors import InvalidRequest, LogUnreadable, StoreUnavailable
from persistence.session_log.catalog import Catalog
from persistence.summaries import schema
from persistence.summaries.fold import SessionSummary
from persistence.summaries.scan import Refreshed, Scan, folded

_decode = msgspec.msgpack.Decoder(SessionSummary).decode


class SummaryPage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Sessions, the most recently used first, of `total` that match; `next` continues behind a page that is full."""

    sessions: tuple[SessionSummary, ...]
    total: int
    next: str | None = None


class Count(Struct, frozen=True, omit_defaults=True):
    """How many Sessions share a project (its `cwd`) or a model; `name` is None for those without one."""

    name: str | None
    sessions: int


class SessionSummaries:
    """The cache. Thread-safe: searches go on while a refresh runs, and see what it has read so far.

    What it says is as old as the last `refresh`. The logs are the truth: the file may be deleted while nobody
    uses it. Several processes may share it.
    """

    def __init__(self, root: Path, path: Path | None = None, *, max_row_bytes: int = 64 * 2**20) -> None:
        """`path`: the file that keeps the summaries between runs; by default they go with this object.

        Raises:
            StoreForeign: `path` is another program's file.
            StoreUnavailable: it cannot be opened or written.
        """
        self._root = str(root)
        self._catalog = Catalog(root)
        self._max_row_bytes = max_row_bytes
        self._refreshed_at: float | None = None
        self._last = Refreshed(0, 0, 0)
        self._scanning, self._searching = threading.Lock(), threading.Lock()
        with contextlib.ExitStack() as opened:
            if path is None:
                path = Path(opened.enter_context(TemporaryDirectory(prefix="feedback-summaries-")), "summaries.sqlite3")
            self._path = path
            with self._typed():
                self._writer = opened.enter_context(contextlib.closing(schema.connect(path)))
                self._reader = opened.enter_context(contextlib.closing(schema.connect(path)))
            self._opened = opened.pop_all()

    def refresh(self, *, max_age: float = 0.0) -> Refreshed:
        """Look at every log: two stats for one that did not change. One refresh at a time; others wait for it.

        Nothing is done when the last one began less than `max_age` seconds ago.

        Raises:
            LogUnreadable: the root, or a project in it, cannot be read. A log that cannot is no failure of the refresh.
            StoreUnavailable: the summaries cannot be written.
        """
        with self._scanning:
            now = time.monotonic()
            if self._refreshed_at is not None and now - self._refreshed_at < max_age:
                return self._last
            try:
                self._last = Scan(self._writer, self._catalog, self._root, self._max_row_bytes).run()
            except OSError as error:
                raise LogUnreadable("", self._root, str(error)) from error
            except sqlite3.Error as error:
                raise self._unavailable(error) from error
            self._refreshed_at = now
            return self._last

    def get(self, session_id: str) -> SessionSummary | None:
        """One Session's summary."""
        rows = self._select("SELECT document FROM summary WHERE id = ? LIMIT 1", (session_id,))
        return _decode(rows[0][0]) if rows else None

    def search(
        self,
        text: str = "",
        *,
        project: str | None = None,
        model: str | None = None,
        among: Collection[str] | None = None,
        without: Collection[str] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> SummaryPage:
        """Up to `limit` Sessions whose id, project, title or first prompt hold every word of `text`, in any case.

        `project` is the exact `cwd`, `model` that of the last answer ("": Sessions without one); only ids in `among`,
        none in `without`.
        `after` is the `next` of the page before.

        Raises:
            InvalidRequest: `after` is none of ours.
            StoreUnavailable: the summaries cannot be read.
        """
        conditions, values = _conditions(text, project, model, among, without)
        where = " AND ".join(conditions) or "1"
        ((total,),) = self._select(f"SELECT count(*) FROM summary WHERE {where}", values)  # noqa: S608 - our conditions
        if after is not None:
            where, values = f"({where}) AND (updated_at, key) < (?, ?)", [*values, *_cursor(after)]
        query = f"""SELECT document, updated_at, key FROM summary WHERE {where}
                    ORDER BY updated_at DESC, key DESC LIMIT ?"""  # noqa: S608 - as above
        rows = self._select(query, [*values, limit + 1])
        more = f"{rows[limit - 1][1]}.{rows[limit - 1][2]}" if len(rows) > limit else None
        return SummaryPage(tuple(_decode(row[0]) for row in rows[:limit]), total, more)

    def projects(self) -> list[Count]:
        """Every project, the one with the most Sessions first."""
        return self._counts("cwd")

    def models(self) -> list[Count]:
        """Every model that gave some Session's last answer, the one with the most Sessions first."""
        return self._counts("model")

    def close(self) -> None:
        """Give the file up, when a refresh that is running has ended."""
        with self._scanning, self._searching:
            self._opened.close()

    def _counts(self, column: str) -> list[Count]:
        query = f"SELECT {column}, count(*) FROM summary GROUP BY 1 ORDER BY 2 DESC, 1"  # noqa: S608 - our columns
        return [Count(name, sessions) for name, sessions in self._select(query, ())]

    def _select(self, query: str, values: Collection[object]) -> list[tuple]:  # type: ignore[type-arg]  # by query
        with self._searching, self._typed():
            return self._reader.execute(query, tuple(values)).fetchall()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"summaries {self._path}: {error}")


def _conditions(
    text: str,
    project: str | None,
    model: str | None,
    among: Collection[str] | None,
    without: Collection[str] | None,
) -> tuple[list[str], list[object]]:
    conditions = ["instr(words, ?) > 0" for _ in text.split()]
    values: list[object] = [folded(word) for word in text.split()]
    for column, name in (("cwd", project), ("model", model)):
        if name is not None:
            conditions.append(f"{column} IS ?")
            values.append(name or None)
    for operator, ids in (("IN", among), ("NOT IN", without)):
        if ids is not None:
            conditions.append(f"id {operator} (SELECT value FROM json_each(?))")  # noqa: S608 - as above
            values.append(msgspec.json.encode(list(ids)).decode())
    return conditions, values


def _cursor(text: str) -> tuple[int, int]:
    updated_at, _, key = text.partition(".")
    try:
        return int(updated_at), int(key)
    except ValueError:
        raise InvalidRequest("$.after", f"no cursor of this list: {text!r}") from None
