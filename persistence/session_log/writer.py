"""Writing format 0 logs, byte for byte as the original does (FORMATS sections 3, 4, 8.3 and 10)."""

import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import zstandard

from feedback.errors import LogAmbiguous, LogFormatUnsupported, LogUnreadable
from feedback.model import SessionIdentity
from persistence.atomic_file import make_directories, publish_file, staged_file, write_all
from persistence.session_log import jsontext, lock
from persistence.session_log.catalog import Catalog, Location
from persistence.session_log.damage import Damage
from persistence.session_log.layout import LogName, project_dir, session_segment
from persistence.session_log.reader import RowReader, read_header
from persistence.session_log.source import CHUNK_BYTES, Source

_MAX_ROW_BYTES = 512 << 20  # the longest string that the original's runtime can hold
_LEVEL = 3


class LogWriter:
    """The one writer of a Session's log: holds the Session's lock from the first write (or an existing log) to `close`.

    Nothing is on disk before the first `append`. An existing log is continued, whatever its
    compression; a torn tail is repaired first, keeping the rows that readers recover from it.
    """

    def __init__(
        self,
        root: Path,
        session_id: str,
        *,
        created_at: int,
        cwd: str | None = None,
        compression: Literal["zstd", "none"] = "zstd",
        parent_session: str | None = None,
        seed_length: int | None = None,
        origin: Literal["subagent"] | None = None,
        delegation_depth: int = 0,
        agent_preset: str | None = None,
    ) -> None:
        """Raises LogOwned when another writer holds the Session, LogAmbiguous when a log of another life of it
        (`created_at`, `cwd`) lies there, LogFormatUnsupported for one of a later format, LogCorrupt,
        RowInvalid and LogUnreadable as reading does; ValueError for an empty id or cwd.
        """
        header = {
            "type": "session",
            "version": 0,
            "id": session_id,
            "createdAt": created_at,
            "cwd": cwd,
            "parentSession": parent_session,
            "seedLength": seed_length,
            "origin": origin,
            "delegationDepth": delegation_depth,
            "agentPreset": agent_preset,
        }
        self.session_id = session_id
        self.identity = SessionIdentity(created_at=created_at, cwd=cwd)
        self.next_seq = 0
        self._header = jsontext.encode({key: value for key, value in header.items() if value is not None}) + b"\n"
        self._catalog = Catalog(root)
        name = LogName(0, compression == "zstd")
        self._location = Location(str(root), project_dir(cwd), session_segment(session_id), name, 0)
        self._descriptor: int | None = None
        self._lock: int | None = None
        self._broken = False
        self._undo_to: int | None = None
        """The size that the file has to be cut to: what lies behind it belongs to a batch that failed."""
        with _typed(self.session_id, self._location):
            existing = self._catalog.find(session_id)
            if existing is not None:
                self._continue(existing)

    @property
    def path(self) -> Path:
        """The log file, whether it exists already or not."""
        return Path(self._location.path)

    def append(self, events: Sequence[Mapping[str, object]]) -> range:
        """Appends one batch, numbered from `next_seq` on, and puts it on stable storage. Gives the seqs.

        An event has `type`, `data`, and what else its type needs (see `events`); `time` is
        now (milliseconds) when it has none. Raises LogUnreadable when the batch could not be
        written: then the log is as it was before, or is made so before the next one.
        """
        rows = [_row(event, self.next_seq + at) for at, event in enumerate(events)]
        if not rows:
            return range(self.next_seq, self.next_seq)
        batch = b"".join(jsontext.encode(row) + b"\n" for row in rows)
        with _typed(self.session_id, self._location):
            if self._descriptor is None:
                self._publish(batch)
            else:
                self._extend(self._descriptor, self._contained(batch))
        self.next_seq += len(rows)
        return range(self.next_seq - len(rows), self.next_seq)

    def close(self) -> None:
        """Gives the Session up."""
        for descriptor in (self._descriptor, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._lock = None
        self._broken = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self, batch: bytes) -> None:
        """The first write: header and first batch appear together, where no log was (FORMATS section 10)."""
        self._check_usable()
        make_directories(self.path.parent)
        if self._lock is None:
            self._lock = lock.acquire(self.session_id, self.path.parent)
        if self._catalog.find(self.session_id) is not None:
            raise LogAmbiguous(self.session_id, str(self.path), "another writer made a log meanwhile")
        self._broken = True
        try:
            publish_file(self.path, self._contained(self._header) + self._contained(batch))
        except OSError:
            # One that has its name already may still show after a power cut; without it the next append is the first.
            self._broken = _may_lie_at(self.path)
            raise
        self._broken = False
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def _continue(self, location: Location) -> None:
        self._location = location
        self._lock = lock.acquire(self.session_id, self.path.parent)
        try:
            self._descriptor = os.open(location.path, os.O_RDWR | os.O_CLOEXEC)
            self._load(self._descriptor, location)
        except BaseException:
            self.close()
            raise

    def _load(self, descriptor: int, location: Location) -> None:
        """Finds the end of what is there, and repairs a torn tail."""
        if location.name.generation > 0:
            raise LogFormatUnsupported(self.session_id, location.path, location.name.generation)
        source = Source(descriptor, os.fstat(descriptor).st_size)
        header, progress = read_header(source, location.name, _MAX_ROW_BYTES)
        if (header.session_id, header.identity) != (self.session_id, self.identity):
            raise LogAmbiguous(self.session_id, location.path, f"a log of {header.identity} lies here")
        reader = RowReader(source, location.name, progress, _MAX_ROW_BYTES)
        for _ in reader.committed():
            pass
        recovered = b"".join(row.line for rows in reader.recovered() for row in rows)
        self.next_seq = reader.next_seq
        if reader.torn and recovered:
            self._descriptor = self._mended(source, descriptor, reader.progress.offset, self._contained(recovered))
            os.close(descriptor)
        elif reader.torn:
            os.ftruncate(descriptor, reader.progress.offset)
            os.fsync(descriptor)

    def _mended(self, source: Source, descriptor: int, offset: int, tail: bytes) -> int:
        """Gives the log, open, with `tail` from `offset` on, and puts it in the place of the one that is torn there.

        The original cuts, then appends. Who stops in between loses messages that feedback may hang on already
        (CONTRACT, rule 5 of `put`): here the same bytes come as a new file, in one step.
        """
        path, torn = self.path.resolve(), os.fstat(descriptor)
        with staged_file(path, replace=True) as temporary, temporary.open("r+b", buffering=0) as file:
            if (torn.st_uid, torn.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), torn.st_uid, torn.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(torn.st_mode))
            for at in range(0, offset, CHUNK_BYTES):
                write_all(file.fileno(), source.read(at, min(CHUNK_BYTES, offset - at)))
            write_all(file.fileno(), tail)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _extend(self, descriptor: int, data: bytes) -> None:
        """Appends, or leaves the file as it was. When even that fails, it is tried again before the next append."""
        self._check_usable()
        if self._undo_to is not None:
            # All before it was synced when it was written, so nothing depends on what failed to be.
            os.ftruncate(descriptor, self._undo_to)
            os.fsync(descriptor)
            self._undo_to = None
        size = os.fstat(descriptor).st_size
        try:
            os.lseek(descriptor, size, os.SEEK_SET)
            write_all(descriptor, data)
            os.fsync(descriptor)
        except BaseException as error:
            try:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            except OSError as rollback:
                self._undo_to = size
                raise LogUnreadable(
                    self.session_id, str(self.path), f"append failed ({error}), and so did taking it back ({rollback})"
                ) from BaseExceptionGroup("append and rollback", [error, rollback])
            raise

    def _contained(self, text: bytes) -> bytes:
        """The text as the container holds it: a frame of its own, or as it is."""
        if not self._location.name.compressed:
            return text
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=False).compressobj()
        return compressor.compress(text) + compressor.flush()

    def _check_usable(self) -> None:
        if self._broken:
            raise LogUnreadable(self.session_id, str(self.path), "this writer is closed or lost track of its file")


def _may_lie_at(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _row(event: Mapping[str, object], seq: int) -> dict[str, object]:
    """The event as it is stored: envelope first, then what it brings along, in its own order."""
    now = time.time_ns() // 1_000_000
    row = {"type": event["type"], "seq": seq, "time": event.get("time", now), "data": event["data"]}
    return row | {key: value for key, value in event.items() if key not in row}


class _typed:  # noqa: N801 - reads as a phrase
    """Turns what can go wrong with one Session's file into the contract's errors."""

    def __init__(self, session_id: str, location: Location) -> None:
        self._session_id = session_id
        self._path = location.path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Damage):
            raise error.failure(self._session_id, self._path) from error
        if isinstance(error, OSError):
            raise LogUnreadable(self._session_id, self._path, str(error)) from error
