"""The remote contract of the original system: `POST /api/messageFeedback/list|put|delete` (docs/http.md)."""

import json
import time
from http import HTTPStatus
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute

from feedback.errors import FeedbackError, InvalidRequest
from feedback.requests import ListRequest, check_text, invalid, parse_json, parse_request
from feedback.results import Result
from gateway.access.principals import Principal, Scope
from gateway.context import Gateway
from gateway.guard import Call, Operation
from gateway.web.answers import json_answer, note_failure
from gateway.web.problems import refused, sentence_of

Verb: TypeAlias = Literal["list", "put", "delete"]
RpcId: TypeAlias = str | int


class _Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    request: dict[str, Any]


class _Payload(Struct, frozen=True, forbid_unknown_fields=True):
    args: _Arguments


class ClientRequest(
    Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="client-request"
):
    """What a client posts. `rpc_id` is any string or whole number, and comes back as it was."""

    rpc_id: RpcId
    method: str
    payload: _Payload


class Details(Struct, frozen=True):
    """Nothing: the original has no details of an internal error either."""


class InternalError(Struct, frozen=True, kw_only=True):
    """A request that is malformed, or could not be answered."""

    code: Literal["internal"] = "internal"
    message: str
    details: Details = Details()


class Succeeded(Struct, frozen=True, kw_only=True):
    """`value` is the contract's result, which may be a business error."""

    ok: Literal[True] = True
    value: Result


class Failed(Struct, frozen=True, kw_only=True):
    """No answer could be had."""

    ok: Literal[False] = False
    error: InternalError


class ServerResponse(Struct, frozen=True, rename="camel", tag_field="type", tag="server-response"):
    """What is answered, with status 200."""

    rpc_id: RpcId
    result: Succeeded | Failed


_SCOPES = {"list": Scope.READ, "put": Scope.RATE, "delete": Scope.RATE}
_VERBS: tuple[Verb, ...] = ("list", "put", "delete")


def remote_routes(gateway: Gateway) -> list[BaseRoute]:
    """One route per method of the contract."""
    return [_route(gateway, verb) for verb in _VERBS]


def _route(gateway: Gateway, verb: Verb) -> BaseRoute:
    method = f"messageFeedback/{verb}"

    async def call(call: Call) -> Response:
        rpc_id = _rpc_id(_leniently_read(call.body))
        try:
            value = await _answer(gateway, verb, _request_in(parse_json(call.body), method), call.principal)
        except FeedbackError as error:
            note_failure(error)
            failure = InternalError(message=f"{error.code}: {sentence_of(error)}")
            return json_answer(ServerResponse(rpc_id, Failed(error=failure)))
        return json_answer(ServerResponse(rpc_id, Succeeded(value=value)))

    return gateway.guard.route(f"/api/{method}", {"POST": Operation(call, _SCOPES[verb])})


def _leniently_read(body: bytes) -> Any:
    """A document that may still break the rules of `parse_json`, but for one: no two ids that the answer could bear.

    Raises:
        InvalidRequest: it is no JSON at all, or has two.
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("$", f"not JSON: {error}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if sum(name == "rpcId" for name, _ in pairs) > 1:
        raise InvalidRequest("$.rpcId", "the member occurs twice")
    return dict(pairs)


def _rpc_id(document: object) -> RpcId:
    """The id that the answer bears. Without one there is nobody to answer in the contract's form."""
    rpc_id = document.get("rpcId") if isinstance(document, dict) else None
    if isinstance(rpc_id, bool) or not isinstance(rpc_id, str | int):
        raise refused(HTTPStatus.BAD_REQUEST, "rpc-id-missing", "rpcId: expected a string or a whole number.")
    check_text("$.rpcId", rpc_id)
    return rpc_id


def _request_in(document: object, method: str) -> dict[str, Any]:
    """The contract's request, still unchecked, out of its envelope.

    Raises:
        InvalidRequest: the envelope is not of the contract's form, or for another method than the path's.
    """
    try:
        envelope = msgspec.convert(document, ClientRequest)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except UnicodeEncodeError:
        raise InvalidRequest("$", "a name that is not well-formed Unicode") from None
    if envelope.method != method:
        raise InvalidRequest("$.method", f"expected {method}, as the path says")
    return envelope.payload.args.request


async def _answer(gateway: Gateway, verb: Verb, members: dict[str, Any], principal: Principal) -> Result:
    request = parse_request(verb, members)
    client, timeout = gateway.client, gateway.settings.gateway_timeout
    if isinstance(request, ListRequest):
        return await client.list(request.session_id, timeout=timeout)
    command = msgspec.structs.replace(request, actor=principal.actor)
    deadline = time.monotonic() + timeout
    ticket = await client.submit(command, timeout=timeout)
    return await ticket.result(max(0.0, deadline - time.monotonic()))
