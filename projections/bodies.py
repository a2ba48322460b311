"""Cached lists as bytes: one codec byte, then msgpack, Zstandard past 1 KiB.

What comes back from Redis is untrusted: it is inflated under a cap and decoded strictly.
"""

import msgspec
import zstandard

from feedback.decoding import decoded
from projections.fold import SCHEMA, CachedList

MAX_BODY_BYTES = 32 * 2**20
"""Bound on one decoded list. A longer one is not cached: the store answers for it."""
MAX_REVISION = 2**53 - 1
"""The last whole number that Lua can compare."""

_COMPRESS_PAST = 1024
_RAW = b"\x00"
_ZSTD = b"\x01"

_decoder = msgspec.msgpack.Decoder(CachedList)


class BodyInvalid(ValueError):
    """These bytes are not a cached list. Never leaves this package: it is a miss."""


class BodyCodec:
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

    def decode(self, body: bytes) -> CachedList:
        """The view in a body.

        Raises:
            BodyInvalid: unknown codec, over the cap, not a list of this schema, or an absurd revision.
        """
        try:
            view = decoded(_decoder, self._plain(body))
        except msgspec.MsgspecError as error:
            raise BodyInvalid(str(error)) from None
        if view.schema != SCHEMA:
            raise BodyInvalid(f"schema {view.schema}")
        if not 1 <= view.revision <= MAX_REVISION:
            raise BodyInvalid(f"revision {view.revision}")
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
