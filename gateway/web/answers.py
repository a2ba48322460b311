"""Answers: JSON by msgspec, and problem documents."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from feedback.errors import CommandIdReused, FeedbackError, InvalidRequest
from gateway.web.problems import MEDIA_TYPE, Refused, problem, refusal_of_failure

_log = logging.getLogger(__name__)

REVISION = "Feedback-Revision"
"""Header of an answer: the Session's revision, to be asked for as `atLeast`."""


def json_answer(
    document: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """A document as JSON."""
    return Response(msgspec.json.encode(document), status, headers, "application/json")


def refusal_answer(refused: Refused) -> Response:
    """A refusal as its problem document."""
    body = msgspec.json.encode(refused.problem)
    return Response(body, refused.problem.status, refused.headers, MEDIA_TYPE)


def failure_answer(error: FeedbackError) -> Response:
    """A failure as its problem document; what callers may not read of it goes to the log."""
    note_failure(error)
    return refusal_answer(refusal_of_failure(error))


def note_failure(error: FeedbackError) -> None:
    """Log what went wrong on this side. A caller's mistakes are no event."""
    if not isinstance(error, InvalidRequest | CommandIdReused):
        _log.warning("not answered code=%s reason=%s", error.code, error)


def revision_header(revision: int | None) -> dict[str, str]:
    """The header that names the Session's revision, where it is known."""
    return {} if revision is None else {REVISION: str(revision)}


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself says (no such route, another method), as a problem document."""
    del request
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    refusal = Refused(problem(status, status.phrase.lower().replace(" ", "-"), error.detail), dict(error.headers or {}))
    return refusal_answer(refusal)
