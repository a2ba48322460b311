"""Everything that is no success, as `application/problem+json` (RFC 9457)."""

from http import HTTPStatus
from typing import assert_never

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from feedback.errors import (
    CommandExpired,
    CommandIdReused,
    Disposition,
    FeedbackError,
    InvalidRequest,
    LogFailure,
    ResultTimeout,
    ShuttingDown,
)
from feedback.model import Item
from feedback.results import (
    NoteBlank,
    NoteTooLarge,
    Rejection,
    SessionNotFound,
    TargetNotFound,
    VersionConflict,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
_TYPES = "urn:session-feedback:problem:"

# What callers read instead of an error's own sentence, which names addresses and files of the server.
_SENTENCES = {
    "QueueUnavailable": "The queue is out of reach. Try again, with the same key where there was one.",
    "QueueFull": "The Session's queue is full; nothing was enqueued. Try again later.",
    "StoreUnavailable": "The store is out of reach. Try again later.",
    "LogCorrupt": "The Session's log is damaged. An operator finds where in the gateway's logs.",
    "LogUnreadable": "The Session's log cannot be read right now. Try again later.",
    "LogFormatUnsupported": "The Session's log was written by a newer program than this gateway knows.",
    "LogAmbiguous": "Two logs bear this Session's id.",
    "FlushUnanswered": "The host that holds the Session open did not flush its log. Try again later.",
    "FlushFailed": "The host that holds the Session open could not flush its log. Try again later.",
    "ShuttingDown": "The gateway is stopping. Try again.",
    "CommandExpired": "The command's deadline passed before it could be applied, and it never will be. Use a new key.",
    "CommandIdReused": "The key was used with another payload, whose effect stands. Use a new key.",
}
_UNREADABLE = "The Session's log cannot be read. An operator finds the reason in the gateway's logs."
_UNNAMED = "The command failed. An operator finds the reason in the failed registry and in the logs."


class Problem(Struct, frozen=True, kw_only=True, rename="camel"):
    """A problem document. `code` is the contract's name of the error; the members behind `detail` are that error's."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    session_id: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    current: Item | UnsetType | None = UNSET
    """Of a version conflict: the item that stands there, or null."""
    max_bytes: int | UnsetType = UNSET
    actual_bytes: int | UnsetType = UNSET
    path: str | UnsetType = UNSET
    """Of an invalid request: the member that is wrong."""
    command_id: str | UnsetType = UNSET
    """Of a command whose answer did not come in time: send again with it as the key."""


class Refused(Exception):
    """A request that is not carried out; becomes the answer `problem` with `headers`."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{problem.status} {problem.code}: {problem.detail}")
        self.problem = problem
        self.headers = headers or {}


def problem(status: HTTPStatus, code: str, detail: str) -> Problem:
    """A problem without members of its own."""
    return Problem(type=_TYPES + code, title=status.phrase, status=int(status), code=code, detail=detail)


def refused(status: HTTPStatus, code: str, detail: str, **headers: str) -> Refused:
    """The refusal to raise; `headers` with underscores for dashes."""
    return Refused(problem(status, code, detail), {name.replace("_", "-"): value for name, value in headers.items()})


def problem_of_rejection(error: Rejection) -> Problem:
    """A business error of the contract, with its members."""
    match error:
        case SessionNotFound():
            found = problem(HTTPStatus.NOT_FOUND, "session-not-found", "There is no such Session.")
            return replace(found, session_id=error.session_id)
        case TargetNotFound():
            sentence = "The Session has no answer of the assistant with this id."
            found = problem(HTTPStatus.NOT_FOUND, "target-not-found", sentence)
            return replace(found, session_id=error.session_id, message_id=error.message_id)
        case VersionConflict():
            sentence = "Something else is stored than the precondition says: see `current`."
            found = problem(HTTPStatus.PRECONDITION_FAILED, "version-conflict", sentence)
            return replace(found, current=error.current)
        case NoteBlank():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "note-blank", "The note holds nothing but white space.")
        case NoteTooLarge():
            sentence = f"The note has {error.actual_bytes} bytes, {error.max_bytes} are allowed."
            found = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "note-too-large", sentence)
            return replace(found, max_bytes=error.max_bytes, actual_bytes=error.actual_bytes)
        case _:
            assert_never(error)


def refusal_of_failure(error: FeedbackError) -> Refused:
    """An infrastructure failure or an invalid request: 503 with `Retry-After` where trying again helps."""
    status = _status_of(error)
    found = problem(status, error.code, sentence_of(error))
    if isinstance(error, InvalidRequest):
        found = replace(found, path=error.path)
    if isinstance(error, ResultTimeout):
        found = replace(found, command_id=error.command_id)
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Refused(found, retry)


def sentence_of(error: FeedbackError) -> str:
    """What a caller may read of a failure: no address and no path of the server's."""
    if isinstance(error, InvalidRequest | ResultTimeout):
        return str(error)
    if isinstance(error, LogFailure):
        return _SENTENCES.get(error.code, _UNREADABLE)
    return _SENTENCES.get(error.code, _UNNAMED)


def _status_of(error: FeedbackError) -> HTTPStatus:
    if isinstance(error, InvalidRequest):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, CommandIdReused):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if error.disposition is Disposition.RETRYABLE or isinstance(error, ShuttingDown | CommandExpired):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR
