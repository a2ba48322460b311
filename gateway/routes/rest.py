"""Feedback as resources: `/sessions/{id}/feedback` and `/sessions/{id}/feedback/{message}` (docs/http.md)."""

from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from feedback.errors import InvalidRequest
from feedback.model import Item, Rating
from feedback.results import ItemList, Ok, Result
from gateway.access.principals import Scope
from gateway.context import Gateway
from gateway.guard import Call, Operation
from gateway.web.answers import json_answer, revision_header
from gateway.web.bodies import check_json, decode
from gateway.web.paths import id_in_path
from gateway.web.preconditions import etag, expected_version, idempotency_key, is_unchanged
from gateway.web.problems import Refused, problem, problem_of_rejection

T = TypeVar("T", Item, ItemList)

LIST_PATH = "/sessions/{session:segment}/feedback"
ITEM_PATH = "/sessions/{session:segment}/feedback/{message:segment}"


class PutBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What a PUT says about the message; a note that is left out is cleared."""

    rating: Rating
    note: str | msgspec.UnsetType = msgspec.UNSET


def rest_routes(gateway: Gateway) -> list[BaseRoute]:
    """The routes of a Session's feedback and of one message's."""
    rest = _Rest(gateway)
    item = {
        "GET": Operation(rest.get, Scope.READ),
        "PUT": Operation(rest.put, Scope.RATE),
        "DELETE": Operation(rest.delete, Scope.RATE),
    }
    return [
        gateway.guard.route(LIST_PATH, {"GET": Operation(rest.list, Scope.READ)}),
        gateway.guard.route(ITEM_PATH, item),
    ]


class _Rest:
    """The handlers. A refusal of the contract is a problem document."""

    def __init__(self, gateway: Gateway) -> None:
        self._client = gateway.client
        self._timeout_s = gateway.settings.gateway_timeout

    async def put(self, call: Call) -> Response:
        """201 for a new item, 200 for one that was replaced, or stood there already."""
        headers = call.request.headers
        session_id, message_id = _ids(call.request)
        if_version = expected_version(headers)
        check_json(call.request)
        body = decode(call.body, PutBody)
        result = await self._client.put(
            session_id,
            message_id,
            body.rating,
            note=None if body.note is msgspec.UNSET else body.note,
            if_version=if_version,
            actor=call.principal.actor,
            command_id=idempotency_key(headers),
            timeout=self._timeout_s,
        )
        item = _value(result, Item)
        status = HTTPStatus.CREATED if if_version is None else HTTPStatus.OK
        return json_answer(item, status, {"ETag": etag(item.version)} | revision_header(result.revision))

    async def delete(self, call: Call) -> Response:
        """204: there is no feedback on the message now."""
        headers = call.request.headers
        session_id, message_id = _ids(call.request)
        result = await self._client.delete(
            session_id,
            message_id,
            if_version=expected_version(headers),
            actor=call.principal.actor,
            command_id=idempotency_key(headers),
            timeout=self._timeout_s,
        )
        _check(result)
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=revision_header(result.revision))

    async def list(self, call: Call) -> Response:
        """200 with the contract's `{items}`."""
        result = await self._listed(call.request)
        return json_answer(_value(result, ItemList), headers=revision_header(result.revision))

    async def get(self, call: Call) -> Response:
        """200 with the item, 304 when the caller has it, 404 when there is none."""
        _, message_id = _ids(call.request)
        result = await self._listed(call.request)
        items = _value(result, ItemList).items
        item = next((one for one in items if one.message_id == message_id), None)
        if item is None:
            detail = "There is no feedback on such a message of the Session."
            raise Refused(problem(HTTPStatus.NOT_FOUND, "feedback-not-found", detail))
        tagged = {"ETag": etag(item.version)} | revision_header(result.revision)
        if is_unchanged(call.request.headers, item.version):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=tagged)
        return json_answer(item, headers=tagged)

    async def _listed(self, request: Request) -> Result:
        session_id = id_in_path(request, "session")
        return await self._client.list(session_id, at_least=_at_least(request), timeout=self._timeout_s)


def _ids(request: Request) -> tuple[str, str]:
    return id_in_path(request, "session"), id_in_path(request, "message")


def _at_least(request: Request) -> int | None:
    """The revision that the answer must have reached."""
    given = request.query_params.get("atLeast")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= len(str(2**63))):
        raise InvalidRequest("atLeast", "expected a revision: a whole number, 0 or more")
    return int(given)


def _check(result: Result) -> Ok:
    if isinstance(result, Ok):
        return result
    found = problem_of_rejection(result.error)
    tag = {"ETag": etag(found.current.version)} if isinstance(found.current, Item) else {}
    raise Refused(found, tag | revision_header(result.revision))


def _value(result: Result, kind: type[T]) -> T:
    """The value of a success. Raises `Refused` for a refusal."""
    value = _check(result).value
    assert isinstance(value, kind), "the client answers what was asked"
    return value
