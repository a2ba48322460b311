"""What people look at: `gateway/page/index.html` at `/`, and its files under `/page/`. No build step."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FILES = Path(__file__).parents[1] / "page"
# Its own scripts, styles and requests, and nobody else's; nothing inline. A newer gateway's files count at once.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # No HTML but what the page's one policy lets through: gateway/page/js/markup.js.
        "require-trusted-types-for 'script'; trusted-types markdown"
    ),
    "Cache-Control": "no-cache",
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(_HEADERS)
        return answer


def page_routes() -> list[BaseRoute]:
    """For everybody: the files hold no data. What they show they ask for with their reader's token."""

    async def index(request: Request) -> Response:
        del request
        return FileResponse(_FILES / "index.html", headers=_HEADERS)

    return [Route("/", index), Mount("/page", _Files(directory=_FILES))]
