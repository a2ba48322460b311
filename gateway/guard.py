"""What every protected route goes through, in order: origin, bearer, scope, rate, room, body, handler, failures."""

import math
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from feedback import tracing
from feedback.errors import FeedbackError
from feedback.settings import Settings
from gateway.access.authentication import Authenticator, check_scope
from gateway.access.limits import RateLimiter
from gateway.access.principals import Principal, Scope
from gateway.room import Room
from gateway.web.answers import failure_answer, refusal_answer
from gateway.web.bodies import read_body
from gateway.web.origins import OriginRule, parse_origins
from gateway.web.problems import Refused, refused

MOST_AT_ONCE = 512
"""Requests that are under way; each may hold a connection to the server and one body."""
MOST_AT_ONCE_EACH = 256

_ESCAPED = 6
"""Bytes of JSON that one byte of a note may take (`\\u0000`)."""
_AROUND_A_NOTE = 64 * 1024
_WITH_BODY = ("POST", "PUT", "PATCH")


class Call(Struct, frozen=True):
    """One request that may be carried out."""

    request: Request
    principal: Principal
    body: bytes


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


class Operation(Struct, frozen=True):
    """What a method of a route does, and what a token must allow for it."""

    handler: Handler
    scope: Scope


class Guard:
    """Lets requests through to their handlers, or says why not."""

    def __init__(self, settings: Settings, authenticator: Authenticator) -> None:
        """Raises `SettingsInvalid` when a setting of the gateway is malformed."""
        self.authenticator = authenticator
        self.origins = parse_origins(settings.gateway_origins)
        self.body_bytes = _ESCAPED * settings.max_note_bytes + _AROUND_A_NOTE
        self._rule = OriginRule(listens_on=settings.gateway_host, hosts=settings.gateway_hosts, origins=self.origins)
        self._limiter = RateLimiter(settings.gateway_rate, max(1.0, 2 * settings.gateway_rate))
        self._timeout_s = settings.gateway_timeout
        self._room = Room(MOST_AT_ONCE, MOST_AT_ONCE_EACH)

    def route(self, path: str, operations: Mapping[str, Operation]) -> Route:
        """A protected route: `operations` by HTTP method."""

        async def endpoint(request: Request) -> Response:
            # HEAD is Starlette's, wherever there is a GET.
            method = "GET" if request.method == "HEAD" else request.method
            return await self._carry_out(request, operations[method])

        return Route(path, endpoint, methods=list(operations))

    async def admit(self, request: Request, scope: Scope) -> Principal:
        """Who makes the request; again, for one that goes on for long.

        Raises:
            Refused: they may not, or not now.
        """
        self._rule.check(request.method, request.headers)
        principal = await self.authenticator.principal(request.headers, request.scope["http_version"])
        request.scope["state"]["actor"] = principal.actor
        check_scope(principal, scope)
        return principal

    async def _carry_out(self, request: Request, operation: Operation) -> Response:
        try:
            principal = await self.admit(request, operation.scope)
            self._count(principal)
            with self._room.take(principal.bucket):
                body = b""
                if request.method in _WITH_BODY:
                    body = await read_body(request, most=self.body_bytes, timeout_s=self._timeout_s)
                with tracing.continuing(request.headers.get("traceparent")):
                    return await operation.handler(Call(request, principal, body))
        except Refused as refusal:
            return refusal_answer(refusal)
        except FeedbackError as error:
            return failure_answer(error)

    def _count(self, principal: Principal) -> None:
        if principal.bucket is not None and (wait := self._limiter.take(principal.bucket)):
            sentence = "Too many requests. Try again later."
            raise refused(HTTPStatus.TOO_MANY_REQUESTS, "rate-limited", sentence, Retry_After=str(math.ceil(wait)))
