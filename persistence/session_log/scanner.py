"""Rows out of the text of a log, in order and without gaps (FORMATS section 8.1).

This is where the first reading of a log spends its time. So lines are decoded and checked many at a time, as long as
it is plain to see that they are good rows; where one is not, all that came with it are looked at one by one.
"""

from collections.abc import Container, Iterable, Sequence
from io import BytesIO

from persistence.session_log import rows
from persistence.session_log.damage import Damage, Misshapen
from persistence.session_log.rows import Malformed, Row
from persistence.session_log.shapes import shape_of


class _Every:
    """The set of all types there are."""

    def __contains__(self, kind: object) -> bool:
        return True


_EVERY = _Every()


class RowScanner:
    """Splits text into lines and takes rows while they follow one another.

    The first row that does not (malformed, or of another seq than the next) is the `defect`:
    it and everything behind it is left out. A turn that was closed at or behind the defect
    makes it `condemned`: committed rows are damaged, a torn append does not explain that.
    A `strict` scanner takes no defect: it raises Damage at once. Every row is checked; only
    those of the types in `kinds` are given (None: all).
    """

    def __init__(
        self,
        version: int,
        next_seq: int,
        max_row_bytes: int,
        *,
        strict: bool = False,
        kinds: Container[str] | None = None,
    ) -> None:
        self.next_seq = next_seq
        self.accepted_bytes = 0
        self.defect: str | None = None
        self.condemned = False
        self._version = version
        self._shape = shape_of(version)
        self._strict = strict
        self._kinds: Container[str] = _EVERY if kinds is None else kinds
        self._max_row_bytes = max_row_bytes
        self._packed = False
        self._pieces: list[bytes] = []
        self._piece_bytes = 0

    @property
    def at_boundary(self) -> bool:
        """Whether everything fed so far belongs to accepted rows."""
        return self.defect is None and self._piece_bytes == 0

    def feed(self, chunk: bytes) -> list[Row]:
        """The rows that `chunk` completes. Raises Misshapen for a row past the cap."""
        most_bytes = self._piece_bytes + len(chunk)
        lines = self._complete_lines(chunk)
        if not lines:
            return []
        if self.defect is None and most_bytes <= self._max_row_bytes:
            taken = self._take_at_once(lines)
            if taken is not None:
                self.accepted_bytes += most_bytes - self._piece_bytes
                return taken
        return self._take_one_by_one(lines)

    def _complete_lines(self, chunk: bytes) -> list[bytes]:
        """The lines that end in `chunk`, each with its line break."""
        lines = BytesIO(chunk).readlines()  # several times as fast as bytes.split
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if lines:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces, self._piece_bytes = [], 0
        if rest:
            self._pieces.append(rest)
            self._piece_bytes += len(rest)
        if not lines:
            self._check_size(self._piece_bytes)
        return lines

    def _take_at_once(self, lines: Sequence[bytes]) -> list[Row] | None:
        """The wanted ones of these rows, or None unless it is plain to see that all are good and follow one another."""
        envelopes = self._shape.envelopes(lines, packed=self._packed)
        end = None if envelopes is None else self._shape.end_of(envelopes, self.next_seq)
        if envelopes is None or end is None:
            return None
        self.next_seq = end
        kinds = self._kinds
        return [
            Row(envelope.type, envelope.seq, envelope.width, line)
            for envelope, line in zip(envelopes, lines, strict=True)
            if envelope.type in kinds
        ]

    def _take_one_by_one(self, lines: Iterable[bytes]) -> list[Row]:
        """As `feed`, whatever these lines are."""
        taken: list[Row] = []
        for line in lines:
            self._check_size(len(line) - 1)
            row = self._row(line)
            if row is None:
                continue
            if self.defect is None and row.seq == self.next_seq:
                self.next_seq += row.width
                self.accepted_bytes += len(line)
                self._packed = self._packed or row.width > 1
                if row.type in self._kinds:
                    taken.append(row)
                continue
            self._note(f"seq gap: expected {self.next_seq}, got {row.seq if row.seq >= 0 else 'none'}")
            self.condemned = self.condemned or row.type == "turn/end"
        return taken

    def _row(self, line: bytes) -> Row | None:
        """The line as a row, whatever its seq; None when it is none, or does not matter any more."""
        if self.defect is not None and not _may_matter(line):
            return None
        try:
            return self._shape.row(line) or rows.any_row(line, self._version)
        except Malformed as error:
            self._note(f"row at seq {self.next_seq} is malformed: {error}")
            return None

    def _check_size(self, line_bytes: int) -> None:
        if line_bytes > self._max_row_bytes:
            raise Misshapen(f"row at seq {self.next_seq} is larger than {self._max_row_bytes} bytes")

    def _note(self, defect: str) -> None:
        if self._strict:
            raise Damage(f"a complete frame holds what is no row: {defect}")
        self.defect = self.defect or defect

    def check(self) -> None:
        """Raises Damage when a closed turn stands at or behind a defect."""
        if self.condemned:
            raise Damage(f"{self.defect}, and a closed turn stands there or behind it")


def _may_matter(line: bytes) -> bool:
    """Whether a line behind a defect can be a turn/end, however spelled, or the null that format 0 refuses."""
    return b"turn/end" in line or b"\\" in line or line.strip() == b"null"
