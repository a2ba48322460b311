"""Infrastructure failures on the wire: `{code, message, members}`, so that the caller gets the typed error back."""

from typing import Any, ClassVar, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from feedback import errors
from feedback.decoding import decoded
from feedback.errors import CommandFailed, FeedbackError

_KNOWN = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, FeedbackError) and value is not FeedbackError
}
_MEMBERS = {
    name: {member: type_ for member, type_ in get_type_hints(kind).items() if get_origin(type_) is not ClassVar}
    for name, kind in _KNOWN.items()
}
"""What each failure declares, with its type."""

KNOWN_CODES = tuple(sorted(_KNOWN))
"""The names of all failures that this program can raise."""
OTHER_CODE = "other"


class Failure(Struct, frozen=True):
    """A failure's name in the contract, its sentence, and its members (strings, numbers, booleans, None)."""

    code: str
    message: str
    members: dict[str, str | bool | int | float | None] = {}


_decoder = msgspec.msgpack.Decoder(Failure)


def failure_of(error: BaseException) -> Failure:
    """Describe an exception; one that is not ours keeps its own name."""
    members = {name: _plain(value) for name, value in vars(error).items() if not name.startswith("_")}
    code = error.code if isinstance(error, FeedbackError) else type(error).__name__
    return Failure(code, _well_formed(str(error)), members if isinstance(error, FeedbackError) else {})


def error_of(failure: Failure) -> FeedbackError:
    """The typed error again, with the members that its class declares: one that is missing or of another type is
    empty, all others are ignored. A name this program does not know becomes `CommandFailed`."""
    kind = _KNOWN.get(failure.code)
    if kind is None:
        return CommandFailed(f"{failure.code}: {failure.message}")
    error = kind.__new__(kind)
    Exception.__init__(error, failure.message)
    for name, type_ in _MEMBERS[failure.code].items():
        setattr(error, name, _of_type(type_, failure.members.get(name)))
    return error


def known_code(code: str) -> str:
    """A failure's name if this program knows it, else `OTHER_CODE`: where not just any word may stand."""
    return code if code in _KNOWN else OTHER_CODE


def encode_failure(failure: Failure) -> bytes:
    return msgspec.msgpack.encode(failure)


def decode_failure(data: bytes) -> Failure:
    """Raises `msgspec.MsgspecError` for anything that is not a failure."""
    return decoded(_decoder, data)


def _plain(value: Any) -> str | bool | int | float | None:
    if isinstance(value, str):
        return _well_formed(value)
    # msgpack's integers have 64 bits; a damaged log may name a version of any size.
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return _well_formed(f"{value!r:.80}")


def _of_type(type_: type, value: str | bool | int | float | None) -> object:
    if type_ is object:
        return value
    if type_ is float and isinstance(value, int):
        return float(value)
    return value if isinstance(value, type_) else type_()


def _well_formed(text: str) -> str:
    """A path may hold bytes that are no UTF-8: Python keeps them as lone surrogates, which no message can carry."""
    return text.encode(errors="backslashreplace").decode()
