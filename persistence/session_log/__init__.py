"""Session logs: found by id, read incrementally, written in format 0 (FORMATS sections 1 to 11)."""

from persistence.session_log.catalog import LogEntry
from persistence.session_log.index import LogView
from persistence.session_log.logs import SessionLogs
from persistence.session_log.messages import MessageSummary
from persistence.session_log.source import Revision
from persistence.session_log.writer import LogWriter

__all__ = ["LogEntry", "LogView", "LogWriter", "MessageSummary", "Revision", "SessionLogs"]
