"""What is remembered of a log, as bytes: for logs that nobody asked for lately, at a sixth of the memory."""

import msgspec
from msgspec import Struct

from feedback.model import SessionIdentity
from persistence.session_log.catalog import Location
from persistence.session_log.index import Entry, Fingerprint, LogState, LogView, MessageIds
from persistence.session_log.layout import LogName
from persistence.session_log.reader import Progress
from persistence.session_log.source import Revision

_MOST_IDS = 128
"""With more of them, bringing an entry back would take longer than two stats do."""


class _Compact(Struct, array_like=True, gc=False):
    """An entry as it lies in bytes. What its key says, and what is the same for all of a root, is left out."""

    project: str
    segment: str | None
    """None: the Session's id."""
    name: LogName
    directory_mtime_ns: int
    created_at: int
    cwd: str | None
    progress: Progress
    revision: Revision
    fingerprint: Fingerprint
    durable: bool
    names_durable: bool
    events: int
    torn: bool
    appended: dict[str, int]
    recovered: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Compact).decode


def compacted(session_id: str, entry: Entry) -> bytes | None:
    """The entry as bytes; None for one that has to stay as it is: in use, half read, large, or of odd text."""
    if not entry.lock.acquire(blocking=False):
        return None
    try:
        return _compacted(session_id, entry)
    except UnicodeEncodeError:
        return None  # lone surrogates
    finally:
        entry.lock.release()


def _compacted(session_id: str, entry: Entry) -> bytes | None:
    state, view = entry.state, entry.view
    if state is None or state.fingerprint is None or view is None or view.revision != state.revision:
        return None
    appended, recovered = state.appended.seqs, view.recovered.seqs
    if len(appended) + len(recovered) > _MOST_IDS:
        return None
    location = state.location
    return _encode(
        _Compact(
            project=location.project,
            segment=None if location.segment == session_id else location.segment,
            name=location.name,
            directory_mtime_ns=location.directory_mtime_ns,
            created_at=state.identity.created_at,
            cwd=state.identity.cwd,
            progress=state.progress,
            revision=state.revision,
            fingerprint=state.fingerprint,
            durable=state.durable == state.revision,
            names_durable=state.names_durable,
            events=view.events,
            torn=view.torn,
            appended=appended,
            recovered=recovered,
        )
    )


def restored(session_id: str, data: bytes, root: str, most_bytes: int) -> Entry:
    """The entry that `compacted` gave as bytes. `most_bytes` bounds what its message ids may grow to."""
    at_rest = _decode(data)
    identity = SessionIdentity(created_at=at_rest.created_at, cwd=at_rest.cwd)
    location = Location(root, at_rest.project, at_rest.segment or session_id, at_rest.name, at_rest.directory_mtime_ns)
    appended, recovered = MessageIds(most_bytes), MessageIds(most_bytes)
    appended.add(at_rest.appended)
    recovered.add(at_rest.recovered)
    state = LogState(
        location=location,
        version=at_rest.name.generation,
        identity=identity,
        progress=at_rest.progress,
        revision=at_rest.revision,
        appended=appended,
        fingerprint=at_rest.fingerprint,
        durable=at_rest.revision if at_rest.durable else None,
        names_durable=at_rest.names_durable,
    )
    view = LogView(
        identity=identity,
        revision=at_rest.revision,
        events=at_rest.events,
        torn=at_rest.torn,
        _appended=appended,
        _recovered=recovered,
    )
    return Entry(state=state, view=view)
