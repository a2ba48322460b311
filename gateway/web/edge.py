"""The outermost layer: one line of log per request, and headers that every answer bears."""

import logging
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Where an answer has none of that name itself: a page has its own policy."""
_MOST_LOGGED = 512

_log = logging.getLogger("gateway.access")


class Edge:
    """Logs method, path without its query, status, time and actor; never a header or a body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 0, monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                more = [header for header in _HEADERS if header[0] not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            _log.info(
                "request method=%s path=%s status=%d ms=%s actor=%s",
                scope["method"],
                scope["raw_path"].decode("latin-1")[:_MOST_LOGGED],
                status,
                round(1000 * (monotonic() - start), 1),
                scope["state"].get("actor"),
            )
