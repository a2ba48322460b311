"""Cached lists, as they stand in Redis: one codec byte, then msgpack, Zstandard past 1 KiB.

What comes back from Redis is untrusted: it is inflated under a cap and decoded strictly.
"""

import msgspec
import zstandard
from msgspec import Struct

from feedback.decoding import decoded
from feedback.model import Item, SessionIdentity

SCHEMA = 1
"""Of `CachedList`. An entry of another schema is a miss, so a new one needs no migration."""
MAX_BODY_BYTES = 32 * 2**20
"""Bound on one decoded list. A longer one is not cached: the store answers for it."""
MAX_REVISION = 2**53 - 1
"""The last whole number that Lua can compare."""

_COMPRESS_PAST = 1024
_RAW = b"\x00"
_ZSTD = b"\x01"


class CachedList(Struct, frozen=True, kw_only=True, rename="camel"):
    """One Session's feedback at one revision (0: nothing was ever stored); items in order of first creation."""

    schema: int = SCHEMA
    session_id: str
    identity: SessionIdentity
    revision: int
    items: tuple[Item, ...]


_decoder = msgspec.msgpack.Decoder(CachedList)


class BodyInvalid(ValueError):
    """These bytes are not a cached list of the Session. It never reaches a caller: it is a miss."""


class ListCodec:
    """Encodes and decodes bodies; for one thread, since it keeps its compressor's memory."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, view: CachedList) -> bytes | None:
        """The view's body, or None when it is too long to be cached."""
        plain = msgspec.msgpack.encode(view)
        if len(plain) > MAX_BODY_BYTES:
            return None
        return _ZSTD + self._compressor.compress(plain) if len(plain) > _COMPRESS_PAST else _RAW + plain

    def decode(self, session_id: str, revision: bytes, body: bytes) -> CachedList:
        """The view in an entry of this Session, whose field `revision` says so.

        Raises:
            BodyInvalid: unknown codec, over the cap, no list of this schema, of another Session or revision.
        """
        try:
            view = decoded(_decoder, self._plain(body))
        except msgspec.MsgspecError as error:
            raise BodyInvalid(str(error)) from None
        if view.schema != SCHEMA:
            raise BodyInvalid(f"schema {view.schema}")
        if view.session_id != session_id:
            raise BodyInvalid("another Session's")
        if revision != str(view.revision).encode() or not 0 <= view.revision <= MAX_REVISION:
            raise BodyInvalid(f"revision {revision!r} with a body of {view.revision}")
        return view

    def _plain(self, body: bytes) -> bytes:
        codec, content = body[:1], body[1:]
        if codec == _RAW and len(content) <= MAX_BODY_BYTES:
            return content
        if codec != _ZSTD:
            raise BodyInvalid(f"codec {codec!r}, {len(content)} bytes")
        try:
            # A frame that does not say its size cannot be bounded, and is none of ours.
            size = zstandard.get_frame_parameters(content).content_size
            if size > MAX_BODY_BYTES:
                raise BodyInvalid(f"inflates to {size} bytes")
            return self._decompressor.decompress(content)
        except zstandard.ZstdError as error:
            raise BodyInvalid(str(error)) from None
