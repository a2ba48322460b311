"""Bringing summaries up to date: two stats for a log that did not change, only what is new for one that grew."""

import os
import sqlite3
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from feedback.errors import LogAmbiguous, LogUnreadable
from persistence.session_log.catalog import Catalog
from persistence.session_log.index import Fingerprint
from persistence.session_log.layout import session_id_of
from persistence.session_log.reader import Progress
from persistence.session_log.source import Revision
from persistence.summaries.reading import Known, Reading, failed_summary, read_summary

_BATCH = 100  # summaries in one transaction, which is open only while it is written: others write as well

_Row: TypeAlias = tuple[str, int, int, int, int, int, int, int, int, bytes, bytes, bytes]
_REMEMBERED = (
    *("name", "directory_mtime_ns", "device", "inode", "size", "mtime_ns", "ctime_ns"),
    *("read_to", "next_seq", "head", "tail", "tally"),
)
_SHOWN = ("id", "cwd", "model", "updated_at", "words", "document")
_COLUMNS = (*_REMEMBERED, *_SHOWN)
_KNOWN = f"SELECT {', '.join(_REMEMBERED)} FROM summary WHERE project = ? AND segment = ?"  # noqa: S608 - constants
_PUT = f"""INSERT INTO summary (project, segment, {", ".join(_COLUMNS)}) VALUES (?, ?{", ?" * len(_COLUMNS)})
           ON CONFLICT (project, segment) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}"""  # noqa: S608


class Refreshed(NamedTuple):
    """What a refresh found: Sessions in all, logs that were read (new or changed), Sessions that are gone."""

    sessions: int
    read: int
    removed: int


class Scan:
    """One pass over all logs under a root, into the cache. Memory: the names of one project's Sessions."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, root: str, max_row_bytes: int) -> None:
        self._connection = connection
        self._catalog = catalog
        self._root = root
        self._max_row_bytes = max_row_bytes
        self._pending: list[tuple[object, ...]] = []
        self._read = 0
        self._removed = 0

    def run(self) -> Refreshed:
        """Raises OSError when the root or a project cannot be read (after all others); sqlite3.Error."""
        sessions = 0
        unreadable: OSError | None = None
        projects = self._catalog.projects()
        for project in projects:
            try:
                kept = list(self._project(project))
            except OSError as error:
                unreadable = error
                continue
            self._flush()
            self._keep_only(os.fsencode(project), kept)
            sessions += len(kept)
        self._keep_only_projects({os.fsencode(project) for project in projects})
        if unreadable is not None:
            raise unreadable
        return Refreshed(sessions, self._read, self._removed)

    def _project(self, project: str) -> Iterator[str]:
        """Brings each Session of a project up to date; the segments of those that have a log."""
        encoded = os.fsencode(project)
        for segment in self._catalog.segments(project):
            if not segment.isascii():
                continue  # no Session's
            row: _Row | None = self._connection.execute(_KNOWN, (encoded, segment)).fetchone()
            if (row is not None and self._is_unchanged(project, segment, row)) or self._update(project, segment, row):
                yield segment

    def _is_unchanged(self, project: str, segment: str, row: _Row) -> bool:
        directory = f"{self._root}/{project}/{segment}"
        try:
            if os.lstat(directory).st_mtime_ns != row[1]:
                return False
            return Revision.at(f"{directory}/{row[0]}") == row[2:7]
        except OSError:
            return False

    def _update(self, project: str, segment: str, row: _Row | None) -> bool:
        """Reads a log that is new or changed; whether there is one."""
        try:
            located = self._catalog.locate(project, segment)
        except LogAmbiguous as error:
            self._put(project, segment, "", -1, failed_summary(error.session_id, error))
            return True
        except OSError as error:
            session_id = session_id_of(segment) or segment
            unread = LogUnreadable(session_id, f"{self._root}/{project}/{segment}", str(error))
            self._put(project, segment, "", -1, failed_summary(session_id, unread))
            return True
        if located is None:
            return False
        session_id, location = located
        known = None
        if row is not None and row[0] == str(location.name):
            known = Known(Revision(*row[2:7]), Progress(*row[7:9]), Fingerprint(*row[9:11]), row[11])
        reading = read_summary(session_id, location, known, self._max_row_bytes)
        self._put(project, segment, str(location.name), location.directory_mtime_ns, reading)
        return True

    def _put(self, project: str, segment: str, name: str, directory_mtime_ns: int, reading: Reading) -> None:
        summary, known = reading
        words = "\n".join(filter(None, (summary.session_id, summary.cwd, summary.title, summary.prompt)))
        remembered = (name, directory_mtime_ns, *known.revision, *known.progress, *known.fingerprint, known.tally)
        shown = (summary.session_id, summary.cwd, summary.model, summary.updated_at or 0, folded(words))
        self._pending.append((os.fsencode(project), segment, *remembered, *shown, msgspec.msgpack.encode(summary)))
        self._read += 1
        if len(self._pending) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._write(_PUT, self._pending)
            self._pending = []

    def _keep_only(self, project: bytes, segments: Collection[str]) -> None:
        (stored,) = self._connection.execute("SELECT count(*) FROM summary WHERE project = ?", (project,)).fetchone()
        if stored == len(segments):
            return
        kept = set(segments)
        rows = self._connection.execute("SELECT key, segment FROM summary WHERE project = ?", (project,)).fetchall()
        self._remove([key for key, segment in rows if segment not in kept])

    def _keep_only_projects(self, projects: Collection[bytes]) -> None:
        for (project,) in self._connection.execute("SELECT DISTINCT project FROM summary").fetchall():
            if project not in projects:
                rows = self._connection.execute("SELECT key FROM summary WHERE project = ?", (project,)).fetchall()
                self._remove([key for (key,) in rows])

    def _remove(self, keys: list[int]) -> None:
        self._write("DELETE FROM summary WHERE key = ?", [(key,) for key in keys])
        self._removed += len(keys)

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(statement, rows)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def folded(text: str) -> str:
    """Text as it is compared in a search: without case, and compatible characters alike."""
    return unicodedata.normalize("NFKC", text).casefold()
