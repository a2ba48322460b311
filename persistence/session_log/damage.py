"""What can be wrong inside a log, before it is known which Session's log it is.

The readers of bytes raise these; `SessionLogs` turns each into the error of
`feedback.errors` that carries the Session and the path.
"""

from feedback.errors import LogCorrupt, LogFailure, LogFormatUnsupported, RowInvalid


class Damage(Exception):
    """The bytes are not a log that could be read; the message says why."""

    def failure(self, session_id: str, path: str) -> LogFailure:
        """This damage as the contract's error, for one Session's log."""
        return LogCorrupt(session_id, path, str(self))


class Unlisted(Damage):
    """No header that a catalog would list: for format 0, there is no such Session (FORMATS section 3)."""


class Misshapen(Damage):
    """One row is larger than the reader takes, or is not of the format's shape."""

    def failure(self, session_id: str, path: str) -> LogFailure:
        return RowInvalid(session_id, path, str(self))


class UnsupportedVersion(Damage):
    """The header names a format version that this file name and this program do not take."""

    def __init__(self, version: object) -> None:
        super().__init__(f"format version {version}")
        self.version = version

    def failure(self, session_id: str, path: str) -> LogFailure:
        return LogFormatUnsupported(session_id, path, self.version)


class Unsteady(Exception):
    """The file changed while it was read; what was read so far says nothing."""
