"""The frame scan: where frames end, what is torn, what is refused (FORMATS section 8.3)."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.session_log import frames
from persistence.session_log.damage import Damage, Unsteady
from persistence.session_log.source import CHUNK_BYTES, Source
from tests.unit.log_examples import bomb, frame


class MakeSource(Protocol):
    def __call__(self, data: bytes, *, size: int | None = None) -> Source: ...


@pytest.fixture
def source(tmp_path: Path) -> Iterator[MakeSource]:
    """Makes a source of some bytes; the file is closed at the end."""
    opened: list[int] = []

    def make(data: bytes, *, size: int | None = None) -> Source:
        path = tmp_path / str(len(opened))
        path.write_bytes(data)
        opened.append(os.open(path, os.O_RDONLY))
        return Source(opened[-1], len(data) if size is None else size)

    yield make
    for descriptor in opened:
        os.close(descriptor)


TEXT = os.urandom(300_000).hex().encode()
FRAMES = {
    "as written": frame(TEXT),
    "empty": frame(b""),
    "content size": zstandard.ZstdCompressor(level=1).compress(TEXT),
    "small content size": zstandard.ZstdCompressor().compress(b"x" * 300),
    "one byte": zstandard.ZstdCompressor().compress(b"x"),
    "no checksum": zstandard.ZstdCompressor(write_checksum=False).compress(TEXT),
    "rle": bomb(1 << 20),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_ends_where_the_library_says(source: MakeSource, name: str) -> None:
    """And gives the library's text, in pieces."""
    data = FRAMES[name]
    both = source(data + frame(b"next"))
    found = frames.next_frame(both, 0)
    assert found is not None
    assert (found.start, found.end) == (0, len(data))
    decoder = zstandard.ZstdDecompressor().decompressobj()
    assert b"".join(frames.FrameDecoder().plaintext(both, found)) == decoder.decompress(data)


@pytest.mark.parametrize("name", ["as written", "content size", "one byte", "empty"])
def test_a_frame_cut_anywhere_is_torn(source: MakeSource, name: str) -> None:
    data = FRAMES[name]
    whole = source(data)
    for cut in [*range(20), *range(20, len(data), 9_973), len(data) - 4, len(data) - 1]:
        if cut < len(data):
            whole.size = cut
            assert frames.next_frame(whole, 0) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x22\xb5\x2f\xfd\x04", "magic"), (b"\x50\x2a\x4d\x18", "magic"), (b"\0\0\0\0", "magic"),
     (b"\x28\xb5\x2f\xfd\x14", "reserved frame-header bit"), (b"\x28\xb5\x2f\xfd\x04\x58\x07\0\0", "block type")],
)  # fmt: skip
def test_what_no_frame_begins_with_is_damage(source: MakeSource, data: bytes, reason: str) -> None:
    with pytest.raises(Damage, match=reason):
        frames.next_frame(source(data), 0)


@pytest.mark.parametrize(
    "damaged",
    [
        frame(b"hello")[:-1] + b"\0",  # the checksum
        b"\x28\xb5\x2f\xfd\x04\xff" + frame(b"hello")[6:],  # a window of terabytes
        zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(b"x" * 64, zstandard.DICT_TYPE_RAWCONTENT)
        ).compress(b"x")[:-1]
        + b"",
    ],
)
def test_content_that_does_not_check_is_damage(source: MakeSource, damaged: bytes) -> None:
    file = source(damaged)
    whole, decoder = frames.next_frame(file, 0), frames.FrameDecoder()
    try:
        text = b"".join(decoder.plaintext(file, whole) if whole else decoder.torn_plaintext(file, 0))
    except Damage:
        return
    assert text == b""


@pytest.mark.parametrize("size", [1, 41_471, 128 << 10, (1 << 20) + 41_471])
def test_all_whole_blocks_of_a_torn_frame_come_out(source: MakeSource, size: int) -> None:
    """However they lie to the pieces in which the file is read: here, all the input is taken long before the output."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    blocks = compressor.compress(b"x" * size) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    text = b"".join(frames.FrameDecoder().torn_plaintext(source(blocks), 0))
    assert len(text) == size


def test_a_run_is_all_the_frames_up_to_the_torn_or_foreign_one(source: MakeSource) -> None:
    """Its content is theirs, one after the other."""
    first, second, third = frame(b"first\n"), frame(b"sec"), frame(b"ond\n")
    for behind in (b"", third[:-1], b"garbage"):
        file = source(first + second + third + behind)
        run = frames.next_run(file, 0)
        assert run is not None
        assert run.end == len(first + second + third)
        assert b"".join(frames.FrameDecoder().plaintext(file, run)) == b"first\nsecond\n"
    assert frames.next_run(source(first[:-1]), 0) is None
    with pytest.raises(Damage):
        frames.next_run(source(b"garbage" + first), 0)


@settings(max_examples=50)
@given(
    kinds=st.lists(st.sampled_from(["small", "small", *FRAMES]), max_size=8),
    behind=st.sampled_from([b"", frame(TEXT)[:-1], frame(b"x")[:8], b"garbage"]),
)
def test_a_run_ends_where_frame_after_frame_does(kinds: list[str], behind: bytes) -> None:
    """Small frames are stepped over by a short cut: to the same end, and with as much text at most."""
    data = b"".join({**FRAMES, "small": frame(b"a batch\n" * 30)}[kind] for kind in kinds) + behind
    with TemporaryFile() as opened:
        opened.write(data)
        opened.flush()
        file = Source(opened.fileno(), len(data))
        try:
            run = frames.next_run(file, 0)
            end = most = 0
            while run is not None and end < run.end:
                one = frames.next_frame(file, end)
                assert one is not None
                end, most = one.end, most + one.most_plain_bytes
            assert run in (None, (0, end, most))
            if end < CHUNK_BYTES:  # nothing was left out
                assert frames.next_frame(file, end) is None
        except Damage:
            assert behind == b"garbage"


def test_a_frame_behind_a_torn_one_is_found(source: MakeSource) -> None:
    """However far behind; a second beginning that is itself torn or bad does not count."""
    torn = frame(TEXT)[:-100]
    assert frames.frame_behind(source(torn), 0, 1000) is None
    assert frames.frame_behind(source(torn + frame(b"x")[:-1]), 0, 1000) is None
    assert frames.frame_behind(source(torn + frame(b"x")[:-1] + b"\0"), 0, 1000) is None
    assert frames.frame_behind(source(torn + frame(b"x\n")), 0, 1000) == len(torn)
    assert frames.frame_behind(source(torn + bomb(1 << 30)), 0, 1000) == len(torn)


def test_thousands_of_frame_beginnings_are_no_torn_append(source: MakeSource) -> None:
    assert frames.frame_behind(source(frames.MAGIC * 5000), 0, 1000) is not None


def test_reading_past_a_cut_says_so(source: MakeSource) -> None:
    """The file is shorter than it was when the reading began."""
    with pytest.raises(Unsteady):
        source(b"abc", size=10).read(0, 10)
    assert source(b"abc").read(2, 10) == b"c"
    assert source(b"abc").read(5, 10) == b""


def test_a_needle_across_two_chunks_is_found(source: MakeSource) -> None:
    edge = (1 << 20) - 2
    assert source(b"\0" * edge + b"needle").find(b"needle", 0) == edge
    assert source(b"\0" * edge + b"needl").find(b"needle", 0) == -1
