"""Finding a Session's log from its id alone (FORMATS sections 1, 2 and 9).

The project directory is unknown, so each one is asked for the Session's segment: a
cost that grows with projects, never with Sessions. Links are not followed to project
or Session directories; a log file may be one.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Self

from msgspec import Struct

from feedback.errors import LogAmbiguous, LogFormatUnsupported
from persistence.session_log.header import Header
from persistence.session_log.layout import LogName, parse_log_name, project_dir, session_id_of, session_segment

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class LogEntry(Struct, frozen=True):
    """One Session of the catalog, as its directory shows it. `cursor` continues a listing behind it."""

    session_id: str
    path: Path
    generation: int
    cursor: str


class Location(Struct, frozen=True):
    """Where the log that counts for a Session lies, and the Session directory's state when that was decided."""

    root: str
    project: str
    segment: str
    name: LogName
    directory_mtime_ns: int

    @property
    def directory(self) -> str:
        """The Session's directory."""
        return f"{self.root}/{self.project}/{self.segment}"

    @property
    def path(self) -> str:
        """The log file."""
        return f"{self.directory}/{self.name}"

    def same_place(self, other: Self) -> bool:
        """Whether both mean the same file name, whatever else came or went beside it."""
        return self.path == other.path

    def directory_unchanged(self) -> bool:
        """Whether no file came or went in the Session's directory, such as a higher generation."""
        status = _lstat(self.directory)
        return status is not None and stat.S_ISDIR(status.st_mode) and status.st_mtime_ns == self.directory_mtime_ns

    @contextmanager
    def open(self) -> Iterator[int]:
        """The log's descriptor, reached without following a link to either directory. Raises OSError."""
        directory = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptors = [os.open(f"{self.root}/{self.project}", directory)]
        try:
            descriptors.append(os.open(self.segment, directory, dir_fd=descriptors[-1]))
            log = os.open(str(self.name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptors[-1])
            descriptors.append(log)
            yield log
        finally:
            for descriptor in reversed(descriptors):
                os.close(descriptor)

    def named_by(self, header: Header) -> bool:
        """Whether the header's id and cwd name this place, or one that resolves to it (FORMATS section 3)."""
        project, segment = project_dir(header.identity.cwd), session_segment(header.session_id)
        if (project, segment) == (self.project, self.segment):
            return True
        named = f"{self.root}/{project}/{segment}/{self.name}"
        return segment == self.segment and os.path.realpath(named) == os.path.realpath(self.path)


class Catalog:
    """The directories under one root. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._projects: tuple[str, ...] = ()
        self._root_file: tuple[int, int] | None = None
        self._root_mtime_ns = -1
        self._lock = Lock()

    def find(self, session_id: str) -> Location | None:
        """The log of a Session, or None when the catalog has none.

        Raises LogAmbiguous when the id has logs in two project directories, or one in both
        encodings; LogFormatUnsupported for one that lies flat in a project directory, as logs
        did before they had directories; OSError when a directory cannot be read.
        """
        if not session_id:
            return None
        segment = session_segment(session_id)
        found = self._probe(session_id, segment, self._known_projects(refresh=False))
        if not found:
            projects = self._known_projects(refresh=True)
            found = self._probe(session_id, segment, projects)
            if not found:
                self._refuse_flat(session_id, segment, projects)
        if len(found) > 1:
            others = ", ".join(location.path for location in found[1:])
            raise LogAmbiguous(session_id, found[0].path, f"another log of this Session lies at {others}")
        return found[0] if found else None

    def entries(self, after: str | None, limit: int) -> list[LogEntry]:
        """Up to `limit` Sessions behind the cursor `after`, ordered by project directory, then segment."""
        project_after, _, segment_after = (after or "").partition("/")
        entries: list[LogEntry] = []
        for project in sorted(_directories(self._root)):
            if project < project_after:
                continue
            for segment in sorted(_directories(f"{self._root}/{project}")):
                if project == project_after and segment <= segment_after:
                    continue
                if len(entries) >= limit:
                    return entries
                entry = self._entry(project, segment)
                if entry is not None:
                    entries.append(entry)
        return entries

    def projects(self) -> list[str]:
        """The project directories, sorted. Raises OSError, as `find` does for a root that was taken away."""
        return list(self._known_projects(refresh=True))

    def segments(self, project: str) -> list[str]:
        """The Session directories of a project, sorted. Raises OSError."""
        return sorted(_directories(f"{self._root}/{project}"))

    def locate(self, project: str, segment: str) -> tuple[str, Location] | None:
        """Whose log lies in a Session's directory, and where; None when there is none.

        Raises LogAmbiguous for one in both encodings, OSError.
        """
        session_id = session_id_of(segment)
        if session_id is None:
            return None
        location = self._look_into(session_id, project, segment)
        return None if location is None else (session_id, location)

    def _entry(self, project: str, segment: str) -> LogEntry | None:
        session_id = session_id_of(segment)
        names = _log_names(f"{self._root}/{project}/{segment}")
        if session_id is None or not names:
            return None
        path = Path(self._root, project, segment, str(max(names)))
        return LogEntry(session_id, path, max(names).generation, f"{project}/{segment}")

    def _probe(self, session_id: str, segment: str, projects: tuple[str, ...]) -> list[Location]:
        found: list[Location] = []
        unreadable: OSError | None = None
        for project in projects:
            try:
                location = self._look_into(session_id, project, segment)
            except OSError as error:
                unreadable = error
                continue
            if location is not None:
                found.append(location)
        if unreadable is not None and not found:
            raise unreadable  # it may lie there; where it was found, another project's directory does not matter
        return found

    def _look_into(self, session_id: str, project: str, segment: str) -> Location | None:
        directory = f"{self._root}/{project}/{segment}"
        status = _lstat(directory)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return None
        names = _log_names(directory)
        if len({name.compressed for name in names}) > 1:
            raise LogAmbiguous(session_id, directory, "both raw and Zstandard logs lie here")
        return Location(self._root, project, segment, max(names), status.st_mtime_ns) if names else None

    def _refuse_flat(self, session_id: str, segment: str, projects: tuple[str, ...]) -> None:
        for project in projects:
            for suffix in (".jsonl", ".jsonl.zstd"):
                flat = f"{self._root}/{project}/{segment}{suffix}"
                status = _lstat(flat)
                if status is not None and stat.S_ISREG(status.st_mode):
                    raise LogFormatUnsupported(session_id, flat, "of the flat layout")

    def _known_projects(self, *, refresh: bool) -> tuple[str, ...]:
        """The project directories. Raises OSError when the root held some and was taken away since.

        A root that is missing from the beginning is one that no host has written to yet.
        """
        with self._lock:
            try:
                status = os.stat(self._root)  # noqa: PTH116 - as in `source`
            except FileNotFoundError:
                if self._projects:
                    raise
                return ()
            if refresh or status.st_mtime_ns != self._root_mtime_ns:
                root, projects = (status.st_dev, status.st_ino), tuple(sorted(_directories(self._root)))
                if self._projects and not projects and root != self._root_file:
                    # Whoever believed this would tell everyone that their Sessions do not exist.
                    raise OSError(errno.ENODEV, "another, empty directory in the root's place; is it mounted?")
                self._projects, self._root_file, self._root_mtime_ns = projects, root, status.st_mtime_ns
            return self._projects


def _directories(parent: str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _log_names(directory: str) -> list[LogName]:
    """The canonical log names in a Session's directory. A link that leads nowhere is none."""
    try:
        with os.scandir(directory) as entries:
            named = [(parse_log_name(entry.name), entry) for entry in entries]
            return [name for name, entry in named if name is not None and _exists(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _exists(entry: os.DirEntry[str]) -> bool:
    try:
        entry.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    return True


def _lstat(path: str) -> os.stat_result | None:
    """What lies at `path`, or None when nothing does or nothing can (a name longer than the file system takes)."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
