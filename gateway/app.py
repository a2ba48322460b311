"""The application: every route, and the layers around them. Nothing here listens; see `gateway.server`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.context import Gateway
from gateway.routes.document import document_routes
from gateway.routes.events import event_routes
from gateway.routes.health import health_routes
from gateway.routes.page import page_routes
from gateway.routes.reading import reading_routes
from gateway.routes.remote import remote_routes
from gateway.routes.rest import rest_routes
from gateway.web.answers import REVISION, answer_http_exception, refusal_answer
from gateway.web.edge import Edge
from gateway.web.paths import EncodedPaths
from gateway.web.problems import refused

_ASKED_FOR = ("Authorization", "Content-Type", "If-Match", "If-None-Match", "Idempotency-Key", "Last-Event-ID")


def create_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application over `gateway`, which it closes when the server shuts down.

    Paths are matched as they came, undecoded (`gateway.web.paths`). A new topic is one more module of
    `gateway.routes`, with its routes in the list here.
    """
    app = Starlette(
        routes=[
            *remote_routes(gateway),
            *rest_routes(gateway),
            *event_routes(gateway),
            *reading_routes(gateway),
            *document_routes(),
            *health_routes(gateway),
            *page_routes(),
        ],
        middleware=[Middleware(EncodedPaths), *_cors(gateway.guard.origins)],
        exception_handlers={HTTPException: answer_http_exception, Exception: _answer_defect},
        lifespan=_lifespan(gateway),
    )
    app.router.redirect_slashes = False
    return Edge(app)


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """Off unless origins are named. No cookies are involved, so none are allowed."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "PUT", "POST", "DELETE"),
            allow_headers=_ASKED_FOR,
            expose_headers=("ETag", "Retry-After", "WWW-Authenticate", REVISION),
        )
    ]


def _lifespan(gateway: Gateway) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        try:
            yield
        finally:
            await gateway.close()

    return lifespan


async def _answer_defect(request: Request, error: Exception) -> Response:
    """A defect of this program. The server logs its traceback; callers learn nothing of it."""
    del request, error
    return refusal_answer(refused(HTTPStatus.INTERNAL_SERVER_ERROR, "defect", "The gateway broke on this request."))
