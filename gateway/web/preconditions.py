"""Versions as HTTP has them: `ETag`, `If-Match`, `If-None-Match`, and the command id as `Idempotency-Key`."""

import re
from http import HTTPStatus

from starlette.datastructures import Headers

from feedback.commands import parse_command_id
from feedback.errors import InvalidRequest
from gateway.web.problems import refused

_STRONG_TAG = re.compile(r'"([\x21\x23-\x7e\x80-\xff]*)"')
_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def etag(version: str) -> str:
    """A version as an entity tag. Versions are UUIDs, so nothing in them needs care."""
    return f'"{version}"'


def expected_version(headers: Headers) -> str | None:
    """The contract's `ifVersion`: one strong tag in `If-Match`, or None for `If-None-Match: *`.

    Raises:
        Refused: 428, there is neither.
        InvalidRequest: there are both, or another form of one of them, which compare-and-set cannot express.
    """
    match, none_match = _only(headers, "if-match"), _only(headers, "if-none-match")
    if match is not None and none_match is not None:
        raise InvalidRequest("If-Match", "If-None-Match is there as well")
    if match is not None:
        tag = _STRONG_TAG.fullmatch(match)
        if tag is None:
            raise InvalidRequest("If-Match", 'expected one strong entity tag, such as "5f1fd2c1-…"')
        return tag[1]
    if none_match is None:
        sentence = 'Say If-Match: "<version>" to change what stands there, or If-None-Match: * to create.'
        raise refused(HTTPStatus.PRECONDITION_REQUIRED, "precondition-required", sentence)
    if none_match != "*":
        raise InvalidRequest("If-None-Match", "expected *")
    return None


def is_unchanged(headers: Headers, version: str) -> bool:
    """Whether a GET's `If-None-Match` names this version (compared weakly, RFC 9110 section 13.1.2)."""
    given = headers.getlist("if-none-match")
    return any(tag in ("*", version) for value in given for tag in (["*"] if value == "*" else _TAG.findall(value)))


def idempotency_key(headers: Headers) -> str | None:
    """The command id that the caller chose: a UUID, bare or as a quoted string.

    Raises:
        InvalidRequest: something else, or more than one.
    """
    given = _only(headers, "idempotency-key")
    if given is None:
        return None
    bare = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    try:
        return parse_command_id(bare)
    except InvalidRequest as error:
        raise InvalidRequest("Idempotency-Key", error.reason) from None


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(name.title(), "occurs twice")
    return values[0].strip() if values else None
