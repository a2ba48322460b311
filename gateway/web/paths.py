"""Ids in paths: any Unicode, percent-encoded, each one segment, which may be empty."""

import re
from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from feedback.errors import InvalidRequest

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class EncodedPaths:
    """Has everything behind it match paths as they came, so that `%2F` is a slash inside of an id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send)


class _Segment(Convertor[str]):
    """`{name:segment}`: what stands between two slashes, still encoded."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", _Segment())


def id_in_path(request: Request, name: str) -> str:
    """The id in the path's parameter `name`.

    Raises:
        InvalidRequest: its escapes are broken, or what they encode is not UTF-8.
    """
    encoded: str = request.path_params[name]
    if _BROKEN_ESCAPE.search(encoded):
        raise InvalidRequest(name, "a % that is no escape")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(name, "not UTF-8") from None
