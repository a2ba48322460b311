"""Live events: `GET /sessions/{id}/events` and `GET /events`, as server-sent events (docs/http.md)."""

from http import HTTPStatus

from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.access.principals import Scope
from gateway.context import Gateway
from gateway.guard import Call, Operation
from gateway.live.answer import EventStream
from gateway.live.feed import Feed
from gateway.web.paths import id_in_path
from gateway.web.problems import RETRY_AFTER_S, Refused, refused

SESSION_EVENTS_PATH = "/sessions/{session:segment}/events"
ALL_EVENTS_PATH = "/events"


def event_routes(gateway: Gateway) -> list[BaseRoute]:
    """One Session's events, and everybody's."""

    async def of_session(call: Call) -> Response:
        return _stream(gateway, call, id_in_path(call.request, "session"))

    async def of_all(call: Call) -> Response:
        return _stream(gateway, call, None)

    return [
        gateway.guard.route(SESSION_EVENTS_PATH, {"GET": Operation(of_session, Scope.READ)}),
        gateway.guard.route(ALL_EVENTS_PATH, {"GET": Operation(of_all, Scope.READ)}),
    ]


def _stream(gateway: Gateway, call: Call, session_id: str | None) -> Response:
    if gateway.hub.is_closing:
        retry = str(RETRY_AFTER_S)
        raise refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "The gateway is stopping.", Retry_After=retry)

    async def may_still_listen() -> bool:
        try:
            await gateway.guard.admit(call.request, Scope.READ)
        except Refused:
            return False
        return True

    last_event_id = call.request.headers.get("last-event-id")
    feed = Feed(gateway.hub, gateway.redis, session_id, last_event_id, recheck=may_still_listen)
    return EventStream(feed.chunks(), gateway.listeners.take(call.principal.bucket))
