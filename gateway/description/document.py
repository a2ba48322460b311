"""The document itself: which operations there are, what they take, and all that they may answer."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from gateway.description.schemas import Schema, ref, schemas
from gateway.web.answers import REVISION
from gateway.web.problems import MEDIA_TYPE

_VERSION = "1"
_UUID = {"type": "string", "format": "uuid"}
_ETAG = {"ETag": {"schema": {"type": "string"}, "required": True, "description": "The item's version, quoted."}}
_REVISION = {REVISION: {"schema": {"type": "integer", "minimum": 0}, "description": "The Session's revision."}}
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 0}, "required": True}}
_AT_LEAST = {
    "name": "atLeast",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "description": "A revision that the answer must have reached.",
}

_SAME = {"path.session": "$request.path.session", "path.message": "$request.path.message"}
_UNDER_VERSION = _SAME | {"header.If-Match": "$response.header.ETag"}
# Where the answer to a PUT leads: what it wrote can be read, and changed under its version.
_LINKS = {
    "links": {
        "read": {"operationId": "getFeedback", "parameters": _SAME},
        "list": {"operationId": "listFeedback", "parameters": {"path.session": "$request.path.session"}},
        "replace": {"operationId": "putFeedback", "parameters": _UNDER_VERSION},
        "remove": {"operationId": "deleteFeedback", "parameters": _UNDER_VERSION},
    }
}

# What any protected operation may answer instead.
_EVERYWHERE = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_WITH_BODY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def openapi_document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "session-feedback",
            "version": _VERSION,
            "description": "Ratings of the answers of LLM-agent Sessions. See docs/http.md.",
        },
        "paths": {
            **{f"/api/messageFeedback/{verb.lower()}": _remote(verb) for verb in ("List", "Put", "Delete")},
            "/sessions/{session}/feedback": {"parameters": [_id("session")], "get": _list()},
            "/sessions/{session}/feedback/{message}": {
                "parameters": [_id("session"), _id("message")],
                "get": _get(),
                "put": _put(),
                "delete": _delete(),
            },
            "/sessions/{session}/events": {"parameters": [_id("session")], "get": _events("sessionEvents")},
            "/events": {"get": _events("allEvents")},
            "/healthz": {"get": _health("health", ())},
            "/readyz": {"get": _health("readiness", (HTTPStatus.SERVICE_UNAVAILABLE,))},
        },
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `feedback token`, or of the issuer.",
                }
            },
        },
        "security": [{"bearer": []}],
    }


def _remote(verb: str) -> dict[str, Any]:
    operation = {
        "operationId": f"messageFeedback.{verb.lower()}",
        "summary": f"The contract's {verb.lower()}, in the original's envelope.",
        "requestBody": _json_body(f"{verb}Call"),
        "responses": _responses({HTTPStatus.OK: _json(f"{verb}Answer")}, *_WITH_BODY),
    }
    return {"post": operation}


def _list() -> dict[str, Any]:
    return {
        "operationId": "listFeedback",
        "summary": "A Session's feedback, in order of first creation.",
        "parameters": [_AT_LEAST],
        "responses": _responses({HTTPStatus.OK: _json("ItemList", _REVISION)}, HTTPStatus.NOT_FOUND),
    }


def _get() -> dict[str, Any]:
    if_none_match = {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}}
    unchanged = {"description": "The caller has it.", "headers": _ETAG | _REVISION}
    good = {HTTPStatus.OK: _json("Item", _ETAG | _REVISION), HTTPStatus.NOT_MODIFIED: unchanged}
    return {
        "operationId": "getFeedback",
        "summary": "The feedback on one message.",
        "parameters": [if_none_match, _AT_LEAST],
        "responses": _responses(good, HTTPStatus.NOT_FOUND),
    }


def _put() -> dict[str, Any]:
    item = _ETAG | _REVISION
    good = {HTTPStatus.OK: _json("Item", item) | _LINKS, HTTPStatus.CREATED: _json("Item", item) | _LINKS}
    return {
        "operationId": "putFeedback",
        "summary": "Rate one message.",
        "parameters": _preconditions(),
        "requestBody": _json_body("PutBody"),
        "responses": _responses(
            good,
            HTTPStatus.NOT_FOUND,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
            *_WITH_BODY,
        ),
    }


def _delete() -> dict[str, Any]:
    gone = {"description": "There is no feedback on the message now.", "headers": _REVISION}
    return {
        "operationId": "deleteFeedback",
        "summary": "Remove the feedback on one message.",
        "parameters": _preconditions(),
        "responses": _responses(
            {HTTPStatus.NO_CONTENT: gone},
            HTTPStatus.NOT_FOUND,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
        ),
    }


def _preconditions() -> list[dict[str, Any]]:
    tag = {"type": "string", "pattern": '^"[!#-~]*"$'}
    return [
        {"name": "If-Match", "in": "header", "schema": tag, "description": "The version that is to be replaced."},
        {"name": "If-None-Match", "in": "header", "schema": {"const": "*"}, "description": "There must be none yet."},
        {"name": "Idempotency-Key", "in": "header", "schema": _UUID, "description": "Makes it safe to send again."},
    ]


def _events(operation_id: str) -> dict[str, Any]:
    stream = {
        "description": "Events as they are committed.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}, "description": "Where to go on."}
    return {
        "operationId": operation_id,
        "summary": "Live events (server-sent); the data of each is an Event.",
        "parameters": [last],
        "responses": _responses({HTTPStatus.OK: stream}),
    }


def _health(operation_id: str, problems: tuple[HTTPStatus, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    good = {"description": "It is well.", "content": {"application/json": {"schema": schema}}}
    responses = {str(int(HTTPStatus.OK)): good} | {str(int(status)): _problem(status) for status in problems}
    return {"operationId": operation_id, "security": [], "responses": responses}


def _id(name: str) -> dict[str, Any]:
    description = "Any Unicode, percent-encoded (a slash as %2F); may be empty."
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": description}


def _json_body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": ref(name)}}}


def _json(name: str, headers: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    content = {"application/json": {"schema": ref(name)}}
    return {"description": name, "content": content} | ({"headers": dict(headers)} if headers else {})


def _problem(status: HTTPStatus) -> dict[str, Any]:
    found: dict[str, Any] = {"description": status.phrase, "content": {MEDIA_TYPE: {"schema": ref("Problem")}}}
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        found["headers"] = _RETRY
    return found


def _responses(good: Mapping[HTTPStatus, dict[str, Any]], *problems: HTTPStatus) -> dict[str, Any]:
    answers = dict(good) | {status: _problem(status) for status in (*problems, *_EVERYWHERE)}
    return {str(int(status)): answer for status, answer in sorted(answers.items())}
