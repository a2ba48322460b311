"""One Session's log, open for reading from its beginning: for those who want more of it than the index keeps."""

import os
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

from feedback.errors import LogUnreadable
from persistence.session_log import source
from persistence.session_log.catalog import Location
from persistence.session_log.damage import Damage, Unlisted, Unsteady
from persistence.session_log.header import Header
from persistence.session_log.index import Fingerprint
from persistence.session_log.reader import Progress, RowReader, read_header
from persistence.session_log.rows import Row
from persistence.session_log.source import Revision, Source


class OpenLog:
    """A log as far as its size was when it was opened; its rows can be read as often as somebody asks.

    Every failure of reading carries the Session and the path.
    """

    def __init__(self, session_id: str, location: Location, descriptor: int, max_row_bytes: int) -> None:
        """Raises Damage (Unlisted for a log without a header), OSError, Unsteady."""
        self.session_id = session_id
        self.location = location
        self.max_row_bytes = max_row_bytes
        self._descriptor = descriptor
        self._source = regular_source(descriptor)
        self.revision = Revision.of(os.fstat(descriptor))._replace(size=self._source.size)
        self.header, self._first_row = checked_header(session_id, location, self._source, max_row_bytes)

    def rows(self, kinds: Container[str] | None = None) -> Iterator[Row]:
        """All rows of the types in `kinds` (None: all), then those of a torn last frame.

        Raises LogCorrupt, LogFormatUnsupported, RowInvalid, LogUnreadable, possibly after the first rows.
        """
        yield from self.reading(kinds).rows()

    def reading(self, kinds: Container[str] | None = None, start: Progress | None = None) -> "Reading":
        """One reading, which says afterwards how far it came; from `start`, where an earlier one of this file ended."""
        reader = RowReader(self._source, self.location.name, start or self._first_row, self.max_row_bytes, kinds=kinds)
        return Reading(self, reader)

    def fingerprint(self, progress: Progress) -> Fingerprint:
        """What the file begins with, up to the end of a reading. Raises OSError."""
        return Fingerprint.of(self._descriptor, progress.offset)


class Reading:
    """One pass over the rows of a log: first `committed`, to its end, then `recovered`."""

    def __init__(self, log: OpenLog, reader: RowReader) -> None:
        self._log = log
        self._reader = reader

    @property
    def progress(self) -> Progress:
        """After `committed`: the clean end, from where a later reading may go on."""
        return self._reader.progress

    def rows(self) -> Iterator[Row]:
        """Both parts."""
        yield from self.committed()
        yield from self.recovered()

    def committed(self) -> Iterator[Row]:
        """The rows before a torn tail. Raises as `OpenLog.rows`."""
        return self._typed(chain.from_iterable(self._reader.committed()))

    def recovered(self) -> Iterator[Row]:
        """What a torn last frame still holds: gone, or committed, when its owner repairs it."""
        return self._typed(chain.from_iterable(self._reader.recovered()))

    def _typed(self, rows: Iterator[Row]) -> Iterator[Row]:
        session_id, path = self._log.session_id, self._log.location.path
        while True:
            # Only what reading raises is a failure of the log: not what is done with the rows.
            try:
                row = next(rows, None)
            except Damage as damage:
                raise damage.failure(session_id, path) from damage
            except (OSError, Unsteady) as error:
                raise LogUnreadable(session_id, path, str(error)) from error
            if row is None:
                return
            yield row


@contextmanager
def opening(session_id: str, location: Location, max_row_bytes: int) -> Iterator[OpenLog | None]:
    """The log at `location`; None for one of format 0 that no catalog would list.

    Raises LogCorrupt, LogFormatUnsupported, RowInvalid, LogUnreadable.
    """
    with ExitStack() as held:
        log: OpenLog | None = None
        try:
            descriptor = held.enter_context(location.open())
            log = OpenLog(session_id, location, descriptor, max_row_bytes)
        except Damage as damage:
            if not isinstance(damage, Unlisted) or location.name.generation > 0:
                raise damage.failure(session_id, location.path) from damage
        except (OSError, Unsteady) as error:
            raise LogUnreadable(session_id, location.path, str(error)) from error
        yield log


def regular_source(descriptor: int) -> Source:
    """The bytes of an open file, as far as its size is now. Raises Damage for a device or a pipe, OSError."""
    if not source.is_regular(descriptor):
        raise Damage("the log is not a regular file")
    return Source(descriptor, os.fstat(descriptor).st_size)


def checked_header(session_id: str, location: Location, file: Source, max_row_bytes: int) -> tuple[Header, Progress]:
    """The header of the log at `location`, and where its rows begin.

    Raises Damage for one that names another place (FORMATS section 3); as `read_header` otherwise.
    """
    header, progress = read_header(file, location.name, max_row_bytes)
    if header.session_id != session_id or not location.named_by(header):
        raise Damage(f"the header names Session {header.session_id!r} of cwd {header.identity.cwd!r}, not this place")
    return header, progress
