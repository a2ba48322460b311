"""JSON text as the original writes and reads it: `JSON.stringify`'s bytes, and a reader that holds one value at a time.

What `persistence.session_log.jsontext` says of values and strings (FORMATS section 17) holds here, too.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NoReturn

from persistence.session_log.jsontext import Json

MAX_VALUE_CHARS = 2**27
"""Of one value that is read as a whole: one Session's record, or a member that is not ours."""

_WINDOW = 2**20
_BLANK = re.compile(r"[ \t\n\r]*")


class TextInvalid(ValueError):
    """This is no JSON text, or one that is past all reason."""


def pretty(document: Mapping[str, object], indent: str = "") -> str:
    """`JSON.stringify(document, null, 2)`, its lines after the first indented by `indent`."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    return text.replace("\n", "\n" + indent) if indent else text


def encoded(text: str) -> bytes:
    """JSON text in UTF-8; a lone surrogate, which can only stand in a string, as its escape."""
    return text.encode(errors="backslashreplace")


def decode(text: bytes) -> Json:
    """The value that a JSON text stands for.

    Raises:
        TextInvalid: it is none.
    """
    try:
        value: Json = _DECODER.decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise TextInvalid(_said(error)) from None
    return value


class JsonReader:
    """Walks a JSON document in a file, from its current place on: a value as a whole, an object member by member.

    Holds a window of the text, which grows to twice the largest value. Every method may raise `TextInvalid` or
    `OSError`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._at = 0
        self._ended = False

    def next(self) -> str:
        """The character with which the next value (or a closer) begins; "" at the end of the file."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill()

    def value(self) -> Json:
        """The next value, whole."""
        self.next()
        while True:
            try:
                value: Json
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # The window may end inside of it.
                if self._ended or isinstance(error, RecursionError):
                    raise TextInvalid(_said(error)) from None
                if len(self._text) - self._at > MAX_VALUE_CHARS:
                    raise TextInvalid(f"malformed, or a value of over {MAX_VALUE_CHARS} characters") from None
            else:
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._fill()

    def members(self) -> Iterator[str]:
        """The names of the next value, an object. At each name its value is next, to be read before going on."""
        self._take("{")
        if self.next() == "}":
            self._take("}")
            return
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise TextInvalid("a member's name is missing")
            self._take(":")
            yield name
            if self.next() != ",":
                break
            self._take(",")
        self._take("}")

    def end(self) -> None:
        """Nothing but blanks may follow."""
        if self.next():
            raise TextInvalid("there is text after the document")

    def _take(self, expected: str) -> None:
        if self.next() != expected:
            found = repr(self.next()) if self.next() else "the end of the file"
            raise TextInvalid(f"expected {expected!r}, got {found}")
        self._at += 1

    def _fill(self) -> None:
        """Read as much as is held already, so that a value of any size is tried a few times only."""
        rest = self._text[self._at :]
        data = self._file.read(max(_WINDOW, len(rest)))
        self._ended = not data
        self._text = rest + self._decode(data, final=self._ended)
        self._at = 0


def _said(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Every number as the double that JavaScript sees; `safe_integer` tells which are whole.
_DECODER = json.JSONDecoder(parse_int=float, parse_constant=_no_constant)
