"""The summary of one log, read from where the last reading of it ended, if the file still begins as it did."""

from typing import NamedTuple

import msgspec

from feedback.errors import LogFailure, LogUnreadable
from persistence.session_log.catalog import Location
from persistence.session_log.damage import Misshapen
from persistence.session_log.header import Header
from persistence.session_log.index import Fingerprint, settled
from persistence.session_log.jsontext import well_formed
from persistence.session_log.opened import OpenLog, opening
from persistence.session_log.reader import Progress
from persistence.session_log.source import Revision
from persistence.summaries.fold import SUMMARY_TYPES, ReadError, SessionSummary, Tally

_NOWHERE, _NO_FINGERPRINT = Progress(0, 0), Fingerprint(b"", b"")
_UNSETTLED = -1  # no file's time: what bears it is looked at again


class Known(NamedTuple):
    """What is remembered of a log: its revision, how far it was read (offset 0: not at all), what it said so far."""

    revision: Revision
    progress: Progress
    fingerprint: Fingerprint
    tally: bytes


class Reading(NamedTuple):
    """What one reading found, and what to remember of it."""

    summary: SessionSummary
    known: Known


def read_summary(session_id: str, location: Location, known: Known | None, max_row_bytes: int) -> Reading:
    """The summary of the log at `location`. One that cannot be read has an error in it, never raises."""
    tally, header, revision = Tally(), None, Revision(0, 0, 0, _UNSETTLED, 0)
    try:
        with opening(session_id, location, max_row_bytes) as log:
            if log is None:
                reason = ReadError("session-not-found", f"the log has no complete header ({location.path})")
                revision = _trusted(Revision.at(location.path))
                return _unread(session_id, header, tally, revision, reason)
            header, revision = log.header, _trusted(log.revision)
            start = _continued(log, known)
            tally = Tally() if start is None or known is None else _decode_tally(known.tally)
            return _read(log, start, tally, revision)
    except LogFailure as error:
        if isinstance(error, LogUnreadable):
            revision = revision._replace(mtime_ns=_UNSETTLED)
        return _unread(session_id, header, tally, revision, ReadError(error.code, well_formed(str(error))))
    except OSError as error:
        reason = ReadError(LogUnreadable.__name__, f"{location.path}: {error.strerror}")
        return _unread(session_id, header, tally, revision, reason)


def failed_summary(session_id: str, error: LogFailure) -> Reading:
    """The summary of a Session of which not even the log is known; it is looked for again."""
    reason = ReadError(error.code, well_formed(str(error)))
    return _unread(session_id, None, Tally(), Revision(0, 0, 0, _UNSETTLED, 0), reason)


def _read(log: OpenLog, start: Progress | None, tally: Tally, revision: Revision) -> Reading:
    session_id, version = log.session_id, log.header.version
    rows = log.reading(SUMMARY_TYPES, start)
    try:
        tally.add(rows.committed(), session_id, version)
        committed = msgspec.msgpack.encode(tally)
        tally.add(rows.recovered(), session_id, version)
    except Misshapen as damage:
        raise damage.failure(session_id, log.location.path) from damage
    known = Known(revision, rows.progress, log.fingerprint(rows.progress), committed)
    return Reading(_summary(session_id, log.header, tally, revision.size), known)


def _continued(log: OpenLog, known: Known | None) -> Progress | None:
    """Where an earlier reading of this very file ended; None when there was none, or the file is another by now."""
    if known is None or known.progress.offset == 0 or not known.revision.same_file(log.revision):
        return None
    if log.revision.size < known.progress.offset or log.fingerprint(known.progress) != known.fingerprint:
        return None
    return known.progress


def _trusted(revision: Revision) -> Revision:
    return revision if settled(revision) else revision._replace(mtime_ns=_UNSETTLED)


def _unread(session_id: str, header: Header | None, tally: Tally, revision: Revision, error: ReadError) -> Reading:
    summary = msgspec.structs.replace(_summary(session_id, header, tally, revision.size), error=error)
    return Reading(summary, Known(revision, _NOWHERE, _NO_FINGERPRINT, b""))


def _summary(session_id: str, header: Header | None, tally: Tally, size: int) -> SessionSummary:
    created_at = header.identity.created_at if header else None
    cwd = header.identity.cwd if header else None
    parent = header.parent_session if header else None
    return SessionSummary(
        session_id=well_formed(session_id),
        created_at=created_at,
        updated_at=tally.last_message_at if tally.last_message_at is not None else created_at,
        cwd=None if cwd is None else well_formed(cwd),
        title=tally.title,
        prompt=tally.prompt,
        answers=tally.answers,
        provider=tally.provider,
        model=tally.model,
        parent_session=None if parent is None else well_formed(parent),
        subagent=header is not None and header.subagent,
        size=size,
    )


_decode_tally = msgspec.msgpack.Decoder(Tally).decode
