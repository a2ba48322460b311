"""What the page reads: `/sessions`, `/sessions/{id}`, its transcript, `/overview` (docs/page.md).

It is the page's own: it may change with it, and is in no OpenAPI document.
"""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from feedback.errors import InvalidRequest
from feedback.results import SessionNotFound
from gateway.access.principals import Scope
from gateway.context import Gateway
from gateway.guard import Call, Operation
from gateway.reading.library import Query, RatedFilter
from gateway.reading.pages import seq_of
from gateway.web.answers import json_answer
from gateway.web.paths import id_in_path
from gateway.web.problems import Refused, problem_of_rejection, refused

P = ParamSpec("P")
T = TypeVar("T")

SESSIONS_PATH, FACETS_PATH, OVERVIEW_PATH = "/sessions", "/facets", "/overview"
SESSION_PATH = "/sessions/{session:segment}"
TRANSCRIPT_PATH = "/sessions/{session:segment}/transcript"
MESSAGE_PATH = "/sessions/{session:segment}/transcript/{seq:segment}"
_MOST_TEXT = 1000
_MOST_WORDS = 32
_CURSOR = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")


def reading_routes(gateway: Gateway) -> list[BaseRoute]:
    """Everything here is read; ratings go through `gateway.routes.rest`."""
    reading = _Reading(gateway)
    handlers = {
        SESSIONS_PATH: reading.sessions,
        FACETS_PATH: reading.facets,
        OVERVIEW_PATH: reading.overview,
        SESSION_PATH: reading.session,
        TRANSCRIPT_PATH: reading.transcript,
        MESSAGE_PATH: reading.message,
    }
    return [gateway.guard.route(path, {"GET": Operation(handler, Scope.READ)}) for path, handler in handlers.items()]


class _Reading:
    """The handlers. Files are read in threads."""

    def __init__(self, gateway: Gateway) -> None:
        self._library = gateway.library
        self._threads = gateway.reading
        self._logs = gateway.logs

    async def sessions(self, call: Call) -> Response:
        """200 with a page of Sessions."""
        return json_answer(await self._ask(call, self._library.sessions, _query(call.request)))

    async def facets(self, call: Call) -> Response:
        """200 with projects and models."""
        return json_answer(await self._ask(call, self._library.facets))

    async def overview(self, call: Call) -> Response:
        """200 with all ratings added up."""
        return json_answer(await self._ask(call, self._library.overview))

    async def session(self, call: Call) -> Response:
        """200 with one Session's summary; 404."""
        session_id = id_in_path(call.request, "session")
        return json_answer(_found(await self._ask(call, self._library.session, session_id), session_id))

    async def transcript(self, call: Call) -> Response:
        """200 with a page of the transcript; 404."""
        session_id = id_in_path(call.request, "session")
        given = call.request.query_params.get("after")
        after = -1 if given is None else seq_of(given, "after")
        page = await self._ask(call, self._library.transcripts.page, session_id, after)
        return json_answer(_found(page, session_id))

    async def message(self, call: Call) -> Response:
        """200 with one message, nothing cut; 404."""
        session_id = id_in_path(call.request, "session")
        seq = seq_of(call.request.path_params["seq"], "seq")
        message = await self._ask(call, self._library.transcripts.message, session_id, seq)
        return json_answer(_found(message, session_id))

    async def _ask(self, call: Call, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._logs.root.is_dir():
            sentence = "This gateway does not see the Session logs. Run one where they lie (setting `sessions`)."
            raise refused(HTTPStatus.SERVICE_UNAVAILABLE, "logs-elsewhere", sentence)
        return await self._threads.run(call.principal.bucket, function, *args, **kwargs)


def _found(document: T | None, session_id: str) -> T:
    if document is None:
        raise Refused(problem_of_rejection(SessionNotFound(session_id=session_id)))
    return document


def _query(request: Request) -> Query:
    """Raises InvalidRequest."""
    given = request.query_params
    return Query(
        text=" ".join(given.get("text", "")[:_MOST_TEXT].split()[:_MOST_WORDS]),
        project=given.get("project"),
        model=given.get("model"),
        rated=_filter(given.get("rated")),
        after=_cursor(given.get("after")),
    )


def _cursor(given: str | None) -> str | None:
    if given is not None and not _CURSOR.fullmatch(given):
        raise InvalidRequest("after", "expected the `next` of the page before")
    return given


def _filter(given: str | None) -> RatedFilter | None:
    try:
        return None if given is None else RatedFilter(given)
    except ValueError:
        raise InvalidRequest("rated", f"expected one of {', '.join(RatedFilter)}") from None
