"""SQLite's result codes as the contract's failures: the one place that knows both."""

import sqlite3

from feedback.errors import FeedbackError, StoreForeign, StoreUnavailable

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
    if code == sqlite3.SQLITE_CONSTRAINT:
        return ValueError(f"the changes contradict each other or what is stored: {error}")
    if code is None and isinstance(error, sqlite3.OperationalError):
        code = sqlite3.SQLITE_CORRUPT
    reason = "failed" if code is None else _REASONS.get(code, "failed")
    return StoreUnavailable(f"sidecar store {location}: {reason} ({name}: {error})")
