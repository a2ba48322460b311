"""`GET /openapi.json`: what there is, for programs."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.description.document import openapi_document


def document_routes() -> list[BaseRoute]:
    """For everybody: it says nothing about this deployment."""
    document = msgspec.json.encode(openapi_document())

    async def openapi(request: Request) -> Response:
        del request
        return Response(document, media_type="application/json")

    return [Route("/openapi.json", openapi)]
