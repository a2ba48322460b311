"""Session logs as the rest of the system asks for them: by Session id, read only as far as they grew."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedback.errors import LogUnreadable
from feedback.model import SessionIdentity
from persistence.atomic_file import fsync_directory
from persistence.session_log import messages
from persistence.session_log.catalog import Catalog, Location, LogEntry
from persistence.session_log.damage import Damage, Misshapen, Unlisted, Unsteady
from persistence.session_log.index import Entry, Fingerprint, LogState, LogView, MessageIds, settled
from persistence.session_log.lru import LogIndex
from persistence.session_log.messages import MessageSummary
from persistence.session_log.opened import OpenLog, checked_header, opening, regular_source
from persistence.session_log.reader import RowReader
from persistence.session_log.source import Revision, Source

_ATTEMPTS = 8


class SessionLogs:
    """All Session logs under one root. Thread-safe; one Session is read by one thread at a time.

    `index_bytes` bounds what is remembered between readings, and the message ids of any one log;
    `max_row_bytes` bounds one row, hence the memory that one reading takes.
    """

    def __init__(self, root: Path, *, index_bytes: int = 64 * 2**20, max_row_bytes: int = 64 * 2**20) -> None:
        self.root = root
        self._catalog = Catalog(root)
        self._index = LogIndex(root, index_bytes)
        self._index_bytes = index_bytes
        self._max_row_bytes = max_row_bytes

    def exists(self, session_id: str) -> bool:
        """Whether a log of this Session lies in the catalog. Reads no log.

        Raises LogAmbiguous when two do, LogUnreadable when a directory cannot be read.
        """
        return self._find(session_id) is not None

    def inspect(self, session_id: str) -> LogView | None:
        """What the Session's log says now; None when there is no such Session. Reads what is new since the last time.

        Raises LogCorrupt, LogFormatUnsupported, LogAmbiguous, RowInvalid, LogUnreadable.
        """
        with self._index.hold(session_id) as entry:
            return self._refresh(session_id, entry, durable=False)

    def peek(self, session_id: str) -> LogView | None:
        """The last view of the log, if a stat says that neither it nor its directory changed since; else None.

        None says nothing about the Session: ask `inspect`.
        """
        entry = self._index.peek(session_id)
        return None if entry is None else _if_unchanged(entry)

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, if `peek` tells it (`feedback.identities.SessionIdentities`)."""
        view = self.peek(session_id)
        return None if view is None else view.identity

    def identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, None when there is no such Session. Reads and raises as `inspect`."""
        view = self.inspect(session_id)
        return None if view is None else view.identity

    def peek_inspected(self, session_id: str) -> LogView | None:
        """What `inspect` would give, if that has nothing to read; else None. Waits for nobody who reads the log.

        Costs what `peek` costs. None says nothing about the Session: ask `inspect`.
        """
        view = self.peek(session_id)
        return view if view is not None and settled(view.revision) else None

    def peek_durable(self, session_id: str) -> LogView | None:
        """What `make_durable` would give, if that has nothing to read and nothing to sync; else None.

        Costs what `peek` costs. None says nothing about the Session: ask `make_durable`.
        """
        entry = self._index.peek(session_id)
        if entry is None or (view := _if_unchanged(entry)) is None:
            return None
        state = entry.state
        durable = state is not None and state.durable == view.revision
        return view if durable and settled(view.revision) else None

    def make_durable(self, session_id: str) -> LogView | None:
        """As `inspect`, and what was read is on stable storage: bytes (once per revision) and name (once per file).

        Raises as `inspect` does; a failed fsync is LogUnreadable, and nothing that was read before it counts any more.
        """
        view = self.peek_durable(session_id)
        if view is not None:
            return view
        with self._index.hold(session_id) as entry:
            return self._refresh(session_id, entry, durable=True)

    def sessions(self, *, after: str | None = None, limit: int) -> list[LogEntry]:
        """A page of the catalog, ordered by project directory and Session directory; `after` is an entry's `cursor`.

        This one scans directories. Raises LogUnreadable.
        """
        try:
            return self._catalog.entries(after, limit)
        except OSError as error:
            raise LogUnreadable("", str(self.root), str(error)) from error

    def messages(self, session_id: str) -> Iterator[MessageSummary]:
        """The messages of a Session's log in order, read as they are asked for; none when there is no such Session.

        Raises as `inspect` does, possibly after the first messages.
        """
        with self.opened(session_id) as log:
            if log is None:
                return
            for row in log.rows(messages.READABLE):
                try:
                    message = messages.summary(row, session_id, log.header.version)
                except Misshapen as damage:
                    raise damage.failure(session_id, log.location.path) from damage
                if message is not None:
                    yield message

    @contextmanager
    def opened(self, session_id: str) -> Iterator[OpenLog | None]:
        """The Session's log, open for reading it from its beginning; None when there is no such Session.

        Raises as `inspect` does; so does reading it.
        """
        location = self._find(session_id)
        if location is None:
            yield None
            return
        with opening(session_id, location, self._max_row_bytes) as log:
            yield log

    def _find(self, session_id: str) -> Location | None:
        try:
            return self._catalog.find(session_id)
        except OSError as error:
            raise LogUnreadable(session_id, str(self.root), str(error)) from error

    def _refresh(self, session_id: str, entry: Entry, *, durable: bool) -> LogView | None:
        """Reads until the file stands still around the reading, some time or other (FORMATS section 10, revision)."""
        for _ in range(_ATTEMPTS):
            location = self._find(session_id)
            if location is None:
                entry.clear()
                return None
            try:
                view = self._read_once(session_id, entry, location, durable=durable)
            except (FileNotFoundError, NotADirectoryError, Unsteady):
                entry.clear()  # moved away or cut short under the reading: look again
                continue
            except BaseException as error:
                entry.clear()
                if isinstance(error, Unlisted) and location.name.generation == 0:
                    return None
                if isinstance(error, Damage):
                    raise error.failure(session_id, location.path) from error
                if isinstance(error, OSError):
                    raise LogUnreadable(session_id, location.path, str(error)) from error
                raise
            if view is not None:
                return view
        raise LogUnreadable(session_id, str(self.root), "the log keeps changing while it is read")

    def _read_once(self, session_id: str, entry: Entry, location: Location, *, durable: bool) -> LogView | None:
        """One attempt. None when the file changed meanwhile, or is no longer what the path names."""
        with location.open() as descriptor:
            view = self._catch_up(session_id, entry, location, descriptor)
            if view is not None and durable:
                self._make_durable(session_id, entry, descriptor)
            if view is None or not _still_there(location, view.revision):
                return None
            entry.view = view
            return view

    def _catch_up(self, session_id: str, entry: Entry, location: Location, descriptor: int) -> LogView | None:
        """Reads what is new. None when the file changed meanwhile."""
        file = regular_source(descriptor)
        revision = Revision.of(os.fstat(descriptor))
        if revision.size != file.size:
            return None
        state = entry.state
        if state is None or not state.continues(descriptor, location, revision):
            entry.clear()
            header, progress = checked_header(session_id, location, file, self._max_row_bytes)
            appended = MessageIds(self._index_bytes)
            state = LogState(location, header.version, header.identity, progress, revision, appended)
            entry.state = state
        elif entry.view is not None and entry.view.revision == revision:
            state.location = location
            return entry.view
        return self._read_on(session_id, state, location, descriptor, revision)

    def _read_on(
        self, session_id: str, state: LogState, location: Location, descriptor: int, revision: Revision
    ) -> LogView | None:
        file = Source(descriptor, revision.size)
        rows = RowReader(file, location.name, state.progress, self._max_row_bytes, kinds=messages.RATABLE)
        recovered = MessageIds(self._index_bytes)
        for some in rows.committed():
            state.appended.add(messages.eligible_ids(some, session_id, state.version))
        for some in rows.recovered():
            recovered.add(messages.eligible_ids(some, session_id, state.version))
        state.progress, state.location, state.revision = rows.progress, location, revision
        state.fingerprint = Fingerprint.of(descriptor, rows.progress.offset)
        if not _stood_still(revision, Revision.of(os.fstat(descriptor)), torn=rows.torn):
            return None
        return LogView(
            identity=state.identity,
            revision=revision,
            events=rows.next_seq,
            torn=rows.torn,
            _appended=state.appended,
            _recovered=recovered,
        )

    def _make_durable(self, session_id: str, entry: Entry, descriptor: int) -> None:
        """fsyncs what was read. A failed fsync is not tried again on what the page cache says: that is dropped, too."""
        state = entry.state
        assert state is not None
        path = state.location.path
        try:
            if not state.names_durable:
                directory = Path(state.location.directory)
                for named in (directory, directory.parent, self.root):
                    fsync_directory(named)
                state.names_durable = True
            if state.durable != state.revision:
                os.fsync(descriptor)
                state.durable = state.revision
        except OSError as error:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            raise LogUnreadable(session_id, path, f"fsync failed: {error}") from error


def _if_unchanged(entry: Entry) -> LogView | None:
    """The entry's view, if a stat of the log and one of its directory give what they gave when it was made."""
    state, view = entry.state, entry.view
    if state is None or view is None:
        return None
    try:
        unchanged = state.location.directory_unchanged() and Revision.at(state.location.path) == view.revision
    except OSError:
        return None
    return view if unchanged else None


def _stood_still(before: Revision, after: Revision, *, torn: bool) -> bool:
    """Whether what was read is the log as it stood when the reading began.

    Stricter readers of the original ask for equal revisions; a busy owner would starve them. A log
    is append-only up to its torn tail: if it has none and merely grew, what was read still stands.
    """
    return after == before or (not torn and after.same_file(before) and after.size > before.size)


def _still_there(location: Location, revision: Revision) -> bool:
    """Whether the path still names the file that was read, with nothing taken away and no generation above it."""
    status = Revision.at(location.path)
    return status.same_file(revision) and status.size >= revision.size and location.directory_unchanged()
