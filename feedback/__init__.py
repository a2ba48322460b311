"""Durable, ordered feedback on the answers of LLM-agent Sessions: what hosts use.

from feedback import FeedbackClient

with FeedbackClient.from_url("redis://127.0.0.1:6379") as client:
    result = client.put("session-1", "message-1", "positive", note="just right")
"""

from feedback.aio import AsyncFeedbackClient, AsyncTicket
from feedback.client import FeedbackClient, Ticket
from feedback.errors import (
    AgentUnanswered,
    CommandExpired,
    CommandFailed,
    CommandIdReused,
    CommandUnknown,
    Disposition,
    FeedbackError,
    Fenced,
    FlushFailed,
    FlushUnanswered,
    HostUnknown,
    InvalidRequest,
    LogAmbiguous,
    LogCorrupt,
    LogFailure,
    LogFormatUnsupported,
    LogUnreadable,
    QueueFull,
    QueueUnavailable,
    ResultTimeout,
    RowInvalid,
    SettingsInvalid,
    ShuttingDown,
    StoreForeign,
    StoreUnavailable,
)
from feedback.live import LiveSession, LiveSessions
from feedback.live_aio import AsyncLiveSession, AsyncLiveSessions
from feedback.model import Item, Rating, SessionIdentity
from feedback.requests import Delete, Put, parse_request
from feedback.results import (
    Absent,
    ItemList,
    NoteBlank,
    NoteTooLarge,
    Ok,
    Rejected,
    Result,
    SessionNotFound,
    TargetNotFound,
    VersionConflict,
)

__all__ = [
    "Absent",
    "AgentUnanswered",
    "AsyncFeedbackClient",
    "AsyncLiveSession",
    "AsyncLiveSessions",
    "AsyncTicket",
    "CommandExpired",
    "CommandFailed",
    "CommandIdReused",
    "CommandUnknown",
    "Delete",
    "Disposition",
    "FeedbackClient",
    "FeedbackError",
    "Fenced",
    "FlushFailed",
    "FlushUnanswered",
    "HostUnknown",
    "InvalidRequest",
    "Item",
    "ItemList",
    "LiveSession",
    "LiveSessions",
    "LogAmbiguous",
    "LogCorrupt",
    "LogFailure",
    "LogFormatUnsupported",
    "LogUnreadable",
    "NoteBlank",
    "NoteTooLarge",
    "Ok",
    "Put",
    "QueueFull",
    "QueueUnavailable",
    "Rating",
    "Rejected",
    "Result",
    "ResultTimeout",
    "RowInvalid",
    "SessionIdentity",
    "SessionNotFound",
    "SettingsInvalid",
    "ShuttingDown",
    "StoreForeign",
    "StoreUnavailable",
    "TargetNotFound",
    "Ticket",
    "VersionConflict",
    "parse_request",
]
