"""The Zstandard container: concatenated frames, one for the header and one per appended batch (FORMATS section 8.3).

A frame's end is found from its block headers, without decompressing. So a frame that
the file ends inside of (a torn append) is told apart from one whose content is bad.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import zstandard

from persistence.session_log.damage import Damage
from persistence.session_log.source import CHUNK_BYTES, Source

MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW_BYTES = 128 << 20
_LARGEST_BLOCK = 128 << 10
_RESERVED_BITS = 0x18
_SINGLE_SEGMENT = 0x20
_CHECKSUM = 0x04
_LAST, _LAST_AND_RLE = 0b001, 0b011  # of a block header's bits: whether it is the last, and half of its type
_LARGEST_BLOCK_SIZE = (1 << 21) - 1
_SMALL_FRAME_AROUND = 13  # magic, descriptor and window, 6; block header, 3; checksum, 4
_small_frame_start = struct.Struct("<4sBxI").unpack_from
_RLE_BLOCK = 1
_RESERVED_BLOCK = 3
_MOST_CANDIDATES = 1024
# All that so much input expands to is in memory at one time: 4 MiB at most, at four bytes a block.
_TORN_STEP_BYTES = 128


class Frame(NamedTuple):
    """One complete frame, or a run of them: the bytes `start` to `end`, and how much text its blocks hold at most."""

    start: int
    end: int
    most_plain_bytes: int


def next_frame(source: Source, start: int) -> Frame | None:
    """The complete frame at `start`, or None when the file ends there or inside of it.

    Raises Damage for bytes that no frame begins with, whole or torn.
    """
    head = source.read(start, 5)
    if len(head) < len(MAGIC):
        return None
    if head[:4] != MAGIC:
        raise Damage(f"invalid frame magic at byte {start}")
    if len(head) == len(MAGIC):
        return None
    descriptor = head[4]
    if descriptor & _RESERVED_BITS:
        raise Damage(f"reserved frame-header bit at byte {start + 4}")
    blocks = _blocks(source, start + _HEADER_LENGTHS[descriptor])
    if blocks is None:
        return None
    end, most_plain_bytes = blocks
    end += 4 if descriptor & _CHECKSUM else 0
    return Frame(start, end, most_plain_bytes) if end <= source.size else None


def next_run(source: Source, start: int) -> Frame | None:
    """The complete frames from `start` on, about `CHUNK_BYTES` of them: hosts write many small ones.

    None, or Damage, as `next_frame` says of the first.
    """
    length, most_plain_bytes = _small_frames(source.read(start, CHUNK_BYTES))
    run = Frame(start, start + length, most_plain_bytes) if length else next_frame(source, start)
    while run is not None and run.end - run.start < CHUNK_BYTES:
        try:
            frame = next_frame(source, run.end)
        except Damage:
            return run  # what is before it comes first
        if frame is None:
            return run
        run = Frame(run.start, frame.end, run.most_plain_bytes + frame.most_plain_bytes)
    return run


def _small_frames(window: bytes) -> tuple[int, int]:
    """The length of the whole small frames that `window` begins with, and how much text they hold at most.

    Small is a frame of one block, with the frame header that hosts write: a checksum, no content size, no dictionary.
    What these cost matters, for most logs are made of them; `next_frame` takes ten times as long, for any frame.
    """
    length = blocks = 0
    with suppress(struct.error):  # the window ends
        while True:
            magic, descriptor, block = _small_frame_start(window, length)
            if magic != MAGIC or descriptor != _CHECKSUM or block & _LAST_AND_RLE != _LAST:
                break
            end = length + _SMALL_FRAME_AROUND + (block >> 3 & _LARGEST_BLOCK_SIZE)
            if end > len(window):
                break
            length, blocks = end, blocks + 1
    return length, blocks * _LARGEST_BLOCK


class FrameDecoder:
    """Decompresses frames, one at a time."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)

    def plaintext(self, source: Source, frame: Frame) -> Iterator[bytes]:
        """The content in pieces of bounded size; a frame's checksum is verified with its last one.

        Raises Damage when the content is bad, needs a dictionary or a window over 128 MiB.
        """
        piece_bytes = max(1, min(frame.most_plain_bytes, CHUNK_BYTES))
        try:
            slice_ = _Slice(source, frame)
            with self._decompressor.stream_reader(slice_, read_across_frames=True) as reader:  # type: ignore[arg-type]  # only read() is used
                while piece := reader.read(piece_bytes):
                    yield piece
        except zstandard.ZstdError as error:
            raise Damage(f"frame at byte {frame.start} failed validation: {error}") from error

    def torn_plaintext(self, source: Source, start: int) -> Iterator[bytes]:
        """What comes out of a frame that the file ends inside of, before the end. Raises as `plaintext`."""
        # Not by a stream reader: at the end of its input it forgets what it has decompressed but not given yet.
        inflate = self._decompressor.decompressobj().decompress
        try:
            for at in range(start, source.size, _TORN_STEP_BYTES):
                yield inflate(source.read(at, _TORN_STEP_BYTES))
        except zstandard.ZstdError as error:
            raise Damage(f"frame at byte {start} failed validation: {error}") from error


def frame_behind(source: Source, torn_at: int, most_bytes: int) -> int | None:
    """Where a whole, valid frame stands behind the supposed torn one; None when there is none.

    A torn append is the last thing in a file. A frame behind it means that damage made the
    frame in front look longer than it is, and that committed rows would vanish with it.
    """
    at = torn_at
    for _ in range(_MOST_CANDIDATES):
        at = source.find(MAGIC, at + 1)
        if at < 0:
            return None
        if _is_valid(source, at, most_bytes):
            return at
    return at  # so many frame beginnings are no torn append either


def _is_valid(source: Source, at: int, most_bytes: int) -> bool:
    try:
        frame = next_frame(source, at)
        if frame is None:
            return False
        seen = 0
        for piece in FrameDecoder().plaintext(source, frame):
            seen += len(piece)
            if seen > most_bytes:
                break
    except Damage:
        return False
    return seen > 0


def _header_length(descriptor: int) -> int:
    single = bool(descriptor & _SINGLE_SEGMENT)
    window = 0 if single else 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    content_size = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    return len(MAGIC) + 1 + window + dictionary + content_size


_HEADER_LENGTHS = tuple(map(_header_length, range(256)))


def _blocks(source: Source, at: int) -> tuple[int, int] | None:
    """Where the blocks that begin at `at` end, and how much they hold at most; None when the file ends first."""
    most_plain_bytes = 0
    while True:
        header = source.read(at, 3)
        if len(header) < 3:  # noqa: PLR2004 - a block header is 3 bytes
            return None
        word = int.from_bytes(header, "little")
        kind, size = word >> 1 & 3, word >> 3
        if kind == _RESERVED_BLOCK:
            raise Damage(f"reserved block type at byte {at}")
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        if at > source.size:
            return None
        most_plain_bytes += _LARGEST_BLOCK
        if word & 1:
            return at, most_plain_bytes


class _Slice:
    """A frame's bytes as the file object that zstandard reads from."""

    def __init__(self, source: Source, frame: Frame) -> None:
        self._source = source
        self._at = frame.start
        self._end = frame.end

    def read(self, length: int) -> bytes:
        data = self._source.read(self._at, min(length, self._end - self._at))
        self._at += len(data)
        return data
