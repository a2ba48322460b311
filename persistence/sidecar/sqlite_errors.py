"""SQLite's result codes as the contract's failures: the one place that knows both."""

import os
import sqlite3
import stat
from pathlib import Path

from feedback.errors import FeedbackError, StoreForeign, StoreMoved, StoreUnavailable

_REASONS = {
    sqlite3.SQLITE_BUSY: "locked by another process for too long",
    sqlite3.SQLITE_LOCKED: "locked by another connection",
    sqlite3.SQLITE_FULL: "no space left for it",
    sqlite3.SQLITE_IOERR: "I/O error",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PROTOCOL: "locking protocol failed",
}

_LONGEST_PATH = 504
"""SQLite's own bound, in bytes, with room for the names of its other files."""

# After these the connection is as good as before: the statement only had to wait, or was wrong.
_HARMLESS = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT}


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for what the Python module raises itself (text that is no UTF-8)."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Somebody else holds the lock."""
    return primary_code(error) == sqlite3.SQLITE_BUSY


def breaks_connection(error: sqlite3.Error) -> bool:
    """A new connection is needed to see a disk that came back, or a file that was put in this one's place."""
    return primary_code(error) not in _HARMLESS


def translate(error: sqlite3.Error, location: str) -> FeedbackError | ValueError:
    """What to raise instead, with the store's place and the reason.

    A violated constraint is the caller's mistake, hence a ValueError: a command id that is recorded already.
    """
    code = primary_code(error)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code == sqlite3.SQLITE_NOTADB:
        return StoreForeign(f"sidecar store {location}: not a SQLite database; not touched")
    if name == "SQLITE_CONSTRAINT_TRIGGER":
        return StoreMoved(f"sidecar store {location}: {error}")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return ValueError(f"the changes contradict each other or what is stored: {error}")
    if code is None and isinstance(error, sqlite3.OperationalError):
        code = sqlite3.SQLITE_CORRUPT
    reason = "failed" if code is None else _REASONS.get(code, "failed")
    if code == sqlite3.SQLITE_CANTOPEN:
        reason += f", {_obstacle(Path(os.path.realpath(location)))}"
    return StoreUnavailable(f"sidecar store {location}: {reason} ({name}: {error})")


def _obstacle(path: Path) -> str:
    """Why SQLite could not open the database, or a file beside it: it does not say.

    Looks without opening: closing the file here would drop SQLite's POSIX locks on it.
    """
    directory = path.parent
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        return f"its path is too long: {length} bytes, of which SQLite takes {_LONGEST_PATH}"
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        return f"its directory {directory}: {error.strerror}"
    if not stat.S_ISDIR(mode):
        return f"{directory} is no directory"
    try:
        found = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        found = 0
    except OSError as error:
        return error.strerror or str(error)
    if found not in {0, stat.S_IFREG}:
        return "it is no regular file"
    return _denied(directory, path if found else directory)


def _denied(directory: Path, target: Path) -> str:
    """What the system refuses, where the names are in order; `target` is the file, or its directory without one."""
    try:
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    if read_only:
        return "its file system is read-only"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"no right to make files in {directory}"
    if not os.access(target, os.R_OK | os.W_OK):
        return "no right to read and write it"
    return "the file is missing" if target == directory else "for no reason that can be seen"
