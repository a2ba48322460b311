"""JSON text as the writers of logs understand it (FORMATS section 17).

Differs from Python's defaults: `NaN` and `Infinity` are no JSON, numbers never overflow
into an error, `-0` stays a negative zero, lone surrogates are legal, bytes that are not
UTF-8 become U+FFFD, and nesting goes as deep as memory allows.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import NoReturn, TypeAlias

from persistence.session_log.damage import Misshapen

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_Container: TypeAlias = list[Json] | dict[str, Json]
MAX_SAFE = 2**53 - 1
_LONGEST_EXACT = 19  # digits; beyond that a double is what the writer saw anyway
_MOST_LEVELS = 1 << 18  # bounds the memory that a row of nothing but brackets takes
_BLANK = re.compile(r"[ \t\n\r]*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(text: bytes) -> Json:
    """The value that a JSON text stands for.

    Raises ValueError when it is not JSON, Misshapen when it is nested past all reason.
    """
    characters = text.decode("utf-8", "replace")
    try:
        value: Json = _DECODER.decode(characters)
    except RecursionError:
        return _decode_deep(characters)
    return value


def encode(value: Mapping[str, object]) -> bytes:
    """Compact JSON, byte for byte what `JSON.stringify` gives for the same members in the same order.

    Raises ValueError for NaN and infinities, TypeError for values that JSON has no form for.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def well_formed(text: str) -> str:
    """Text of a log as others may have it: lone surrogates, which UTF-8 and most JSON readers refuse, become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def safe_integer(value: Json) -> int | None:
    """`value` as an integer when JavaScript's `Number.isSafeInteger` holds for it, else None. -0 gives 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_SAFE <= value <= MAX_SAFE:
        return None
    return int(value) if value == int(value) else None


def count(value: Json) -> int | None:
    """`value` as a safe integer of at least 0 that is not negative zero, else None."""
    number = safe_integer(value)
    if number is None or number < 0 or (number == 0 and math.copysign(1, value) < 0):  # type: ignore[arg-type]  # a number by now
        return None
    return number


def _integer(digits: str) -> int | float:
    if len(digits) > _LONGEST_EXACT or digits == "-0":
        return float(digits)
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_no_constant)


def _decode_deep(text: str) -> Json:
    """As `_DECODER.decode`, with a list for a stack: nesting deeper than the interpreter recurses is legal."""
    parents: list[tuple[_Container, str]] = []
    key, at = "", _skip(text, 0)
    while True:
        value, at, opened = _begin(text, at)
        if opened is not None:
            if len(parents) >= _MOST_LEVELS:
                raise Misshapen(f"JSON nested deeper than {_MOST_LEVELS} levels")
            parents.append((opened, key))
            key, at = _member(opened, text, at)
            continue
        while parents:  # the value is complete: put it into its parent, which may complete that one too
            parent, outer = parents[-1]
            if isinstance(parent, list):
                parent.append(value)
            else:
                parent[key] = value
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                key, at = _member(parent, text, _skip(text, at + 1))
                break
            if text[at : at + 1] != _closer(parent):
                raise ValueError("malformed JSON")
            parents.pop()
            value, key, at = parent, outer, at + 1
        else:
            if _skip(text, at) != len(text):
                raise ValueError("text after the JSON value")
            return value


def _begin(text: str, at: int) -> tuple[Json, int, _Container | None]:
    """A scalar or an empty container, with what follows it; or a container that is open from here on."""
    opener = text[at : at + 1]
    if opener not in ("[", "{"):
        value, at = _DECODER.raw_decode(text, at)
        return value, at, None
    container: _Container = [] if opener == "[" else {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == _closer(container):
        return container, at + 1, None
    return None, at, container


def _closer(container: _Container) -> str:
    return "]" if isinstance(container, list) else "}"


def _member(parent: _Container, text: str, at: int) -> tuple[str, int]:
    """The name of the next member and where its value begins; items of a list have none."""
    if isinstance(parent, list):
        return "", at
    if text[at : at + 1] != '"':
        raise ValueError("a member's name is missing")
    key, at = _DECODER.raw_decode(text, at)
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        raise ValueError("a colon is missing")
    return key, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None
    return blank.end()
