"""A second reading of a log, as lenient as can be: whatever plain text can be had from it, row by row, in any order.

What the real reader calls eligible has to be in here. The other way round need not hold.
"""

import contextlib
import json
from collections.abc import Iterator

import zstandard

from tests.fuzz.mutations import MAGIC

_CAP = 1 << 22


def messages(log: bytes, session_id: str, *, is_zstd: bool) -> set[str]:
    """Ids of assistant messages of append origin with content that stand anywhere in the log."""
    found: set[str] = set()
    for text in _texts(log) if is_zstd else [log]:
        for line in text.split(b"\n"):
            found |= set(_ids(line, session_id))
    return found


def _texts(log: bytes) -> Iterator[bytes]:
    """The text of all frames in a row, as far as it comes, and of each place that looks like a frame."""
    joined, at = b"", log.find(MAGIC)
    while at >= 0:
        decoder, text = zstandard.ZstdDecompressor().decompressobj(), b""
        # Piece by piece: a torn or bad frame gives what stands before the damage.
        with contextlib.suppress(zstandard.ZstdError):
            for start in range(at, len(log), 64):
                text += decoder.decompress(log[start : start + 64])
                if decoder.eof or len(text) > _CAP:
                    break
        yield text
        joined += text
        at = log.find(MAGIC, at + 1)
    yield joined


def _ids(line: bytes, session_id: str) -> Iterator[str]:
    try:
        row = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return
    if not isinstance(row, dict) or row.get("type") != "assistant/message" or row.get("surfaceOp") != "append":
        return
    data = row.get("data")
    message = data.get("message", data) if isinstance(data, dict) else None
    if isinstance(message, dict) and message.get("content"):
        # Shapes from before messages had ids are read under one that is made of the row's place.
        yield from (str(message.get("id")), f"legacy-message:{session_id}:{row.get('seq')}")
