"""Reading one open log, from its beginning or from where an earlier reading stopped (FORMATS section 8)."""

from collections.abc import Container, Iterator
from typing import NamedTuple

from persistence.session_log import frames
from persistence.session_log.damage import Damage, Misshapen, Unlisted, UnsupportedVersion
from persistence.session_log.header import NEWEST_VERSION, Header, parse_header
from persistence.session_log.layout import LogName
from persistence.session_log.rows import Row
from persistence.session_log.scanner import RowScanner
from persistence.session_log.source import Source


class Progress(NamedTuple):
    """A clean end: everything before `offset` (a row's end, or a frame's) was accepted, and `next_seq` comes next."""

    offset: int
    next_seq: int


def read_header(source: Source, name: LogName, max_row_bytes: int) -> tuple[Header, Progress]:
    """The header of a log, and the place where its rows begin.

    Raises Unlisted when there is none that a catalog would list, other Damage as `parse_header`
    does, Misshapen for a header line past `max_row_bytes`.
    """
    if name.generation > NEWEST_VERSION:
        raise UnsupportedVersion(name.generation)
    line, end = _header_frame(source, max_row_bytes) if name.compressed else _header_line(source, max_row_bytes)
    return parse_header(line, name.generation), Progress(end, 0)


def _header_line(source: Source, max_row_bytes: int) -> tuple[bytes, int]:
    end = source.find(b"\n", 0)
    if end < 0:
        raise Unlisted("the log has no complete header line")
    if end > max_row_bytes:
        raise Misshapen(f"the header is larger than {max_row_bytes} bytes")
    return source.read(0, end), end + 1


def _header_frame(source: Source, max_row_bytes: int) -> tuple[bytes, int]:
    frame = frames.next_frame(source, 0)
    if frame is None:
        _check_nothing_behind(source, 0, max_row_bytes)
        raise Unlisted("the log has no complete header frame")
    line = bytearray()
    for piece in frames.FrameDecoder().plaintext(source, frame):
        line += piece
        if len(line) > max_row_bytes:
            raise Misshapen(f"the header is larger than {max_row_bytes} bytes")
    if line.find(b"\n") != len(line) - 1:
        raise Damage("the first frame is not exactly one header line")
    return bytes(line[:-1]), frame.end


def _check_nothing_behind(source: Source, torn_at: int, max_row_bytes: int) -> None:
    """A torn append is the last thing in a file. The original takes any frame that runs past the end for one."""
    behind = frames.frame_behind(source, torn_at, max_row_bytes)
    if behind is not None:
        raise Damage(f"the frame at byte {torn_at} runs past the end of the file, yet one stands at byte {behind}")


class RowReader:
    """The rows of one log from `progress` on, those of the types in `kinds` (None: all), some at a time.

    First `committed`, then `recovered`, each to its end; then `progress` is the clean end that
    the next reading may start from, `torn` says whether something behind it was left out, and
    `next_seq` is the seq behind the last row, recovered or not.
    Both raise Damage for a log that a torn tail does not explain.
    """

    def __init__(
        self,
        source: Source,
        name: LogName,
        progress: Progress,
        max_row_bytes: int,
        *,
        kinds: Container[str] | None = None,
    ) -> None:
        self.progress = progress
        self.next_seq = progress.next_seq
        self.torn = False
        self._source = source
        self._name = name
        self._max_row_bytes = max_row_bytes
        self._kinds = kinds
        self._decoder = frames.FrameDecoder()

    def committed(self) -> Iterator[list[Row]]:
        """The rows before the torn tail, if there is one."""
        return self._complete_frames() if self._name.compressed else self._lines()

    def recovered(self) -> Iterator[list[Row]]:
        """What can be read out of a torn last frame: part of the log as it stands, gone when its owner repairs it."""
        start = self.progress.offset
        if not self._name.compressed or not self.torn:
            return
        _check_nothing_behind(self._source, start, self._max_row_bytes)
        probe = self._scanner()
        try:
            for piece in self._decoder.torn_plaintext(self._source, start):
                probe.feed(piece)
        except Misshapen:
            raise
        except Damage:
            return  # nothing of a frame that does not decode is used
        probe.check()
        scanner = self._scanner()
        for piece in self._decoder.torn_plaintext(self._source, start):
            yield scanner.feed(piece)
        self.next_seq = scanner.next_seq

    def _scanner(self, *, strict: bool = False) -> RowScanner:
        first, cap = self.progress.next_seq, self._max_row_bytes
        return RowScanner(self._name.generation, first, cap, strict=strict, kinds=self._kinds)

    def _lines(self) -> Iterator[list[Row]]:
        scanner = self._scanner()
        start = self.progress.offset
        for chunk in self._source.chunks(start):
            yield scanner.feed(chunk)
            scanner.check()
        self.progress = Progress(start + scanner.accepted_bytes, scanner.next_seq)
        self.next_seq = scanner.next_seq
        self.torn = not scanner.at_boundary

    def _complete_frames(self) -> Iterator[list[Row]]:
        """Every byte of a complete frame must belong to an accepted row; rows may span frames."""
        scanner = self._scanner(strict=True)
        end = self.progress.offset
        while run := frames.next_run(self._source, end):
            for piece in self._decoder.plaintext(self._source, run):
                yield scanner.feed(piece)
            end = run.end
        if not scanner.at_boundary:
            raise Damage("the last complete frame ends inside of a row")
        self.progress = Progress(end, scanner.next_seq)
        self.next_seq = scanner.next_seq
        self.torn = end < self._source.size
