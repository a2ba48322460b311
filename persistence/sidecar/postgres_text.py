"""Text in PostgreSQL: its own `text` cannot hold U+0000, and compares as the database's locale says.

So every text of ours is the `bytea` of its UTF-8: any well-formed Unicode, equal and ordered byte by byte, in a
database of any encoding.
"""

from hashlib import sha256

from feedback.errors import StoreUnavailable

LONGEST_KEY = 1000
"""Bytes of the longest id that is indexed as it is: an index row takes 2,704, and some have two ids."""

_LONG = b"\xff"
"""No UTF-8 begins like this."""


def key_of(text: str) -> bytes:
    """What an id is indexed and compared by: itself, or a digest where it is too long for that."""
    data = text.encode()
    return data if len(data) <= LONGEST_KEY else _LONG + sha256(data).digest()


def long_of(text: str) -> bytes | None:
    """What has to be stored beside the key: the whole id, where the key is but its digest."""
    data = text.encode()
    return None if len(data) <= LONGEST_KEY else data


def text_of(key: bytes, long: bytes | None) -> str:
    """The id whose key, and whole text where that is too long, are these. Raises as `decoded`."""
    return decoded(key if long is None else long)


def decoded(data: bytes) -> str:
    """Stored bytes as the text that they are.

    Raises:
        StoreUnavailable: somebody else wrote them.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StoreUnavailable(f"sidecar store: corrupt (a text of it is not Unicode: {error.reason})") from error
