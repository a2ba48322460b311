"""Request bodies: bounded while they arrive, and read as strict JSON."""

import asyncio
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from feedback.requests import check_members, invalid, parse_json
from gateway.web.problems import refused

T = TypeVar("T")


async def read_body(request: Request, *, most: int, timeout_s: float) -> bytes:
    """The body, of at most `most` bytes, within `timeout_s` seconds. What is larger is never held.

    Raises:
        Refused: it is larger, does not come, or the caller went away.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(most)
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise refused(
            HTTPStatus.REQUEST_TIMEOUT, "body-timeout", "The body did not come.", Connection="close"
        ) from None
    except ClientDisconnect:
        raise refused(HTTPStatus.BAD_REQUEST, "disconnected", "The caller went away.", Connection="close") from None
    return b"".join(parts)


def _too_large(most: int) -> Exception:
    sentence = f"The body has more than {most} bytes."
    # The rest of the body is not read: nothing else can come on this connection.
    return refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", sentence, Connection="close")


def check_json(request: Request) -> None:
    """Refuse a body that says it is something else than JSON.

    Raises:
        Refused: 415.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-json", "The body must be application/json.")


def decode(body: bytes, kind: type[T]) -> T:
    """A closed object of strict JSON.

    Raises:
        InvalidRequest: with the path of the first member that is wrong.
    """
    members = parse_json(body)
    check_members(members)
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
