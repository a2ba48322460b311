"""From bytes to rows, in order and without gaps (FORMATS sections 4, 5 and 8.1).

A row's payload is skipped over (checked to be JSON, not built) until someone asks for it:
what the barrier needs of most rows is their `type` and `seq`.
"""

from collections.abc import Callable, Container
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from persistence.session_log import jsontext
from persistence.session_log.damage import Damage, Misshapen
from persistence.session_log.jsontext import Json

_PACKED = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
_EXACT_MEMBERS = frozenset(("type", "seq", "time", "data", "ignorable", "surfaceOp", "sourceEventSeqs"))
_FIRST_RANGED, _FIRST_EXACT = 1, 2


class Row(NamedTuple):
    """One accepted row: its first seq, how many seqs it covers (packed rows: several), and its text."""

    type: str
    seq: int
    width: int
    line: bytes

    def document(self) -> dict[str, Json]:
        """The whole row."""
        document: Json
        try:
            document = msgspec.json.decode(self.line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            document = jsontext.decode(self.line)
        assert isinstance(document, dict)
        return document


class _Envelope(msgspec.Struct):
    """What the scan needs of a version 0 row; the other members are only checked to be JSON."""

    type: str
    seq: int


class _RangedEnvelope(_Envelope, rename="camel"):
    """Version 1: references may come in ranges, whose form the codec checks."""

    source_event_seqs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _ExactEnvelope(_RangedEnvelope, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """From version 2 on: no other members than these."""

    time: int
    data: msgspec.Raw
    ignorable: bool = True
    surface_op: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_AnyEnvelope: TypeAlias = _Envelope | _RangedEnvelope | _ExactEnvelope
_decode_plain: Callable[[bytes], _AnyEnvelope] = msgspec.json.Decoder(_Envelope).decode
_decode_ranged: Callable[[bytes], _AnyEnvelope] = msgspec.json.Decoder(_RangedEnvelope).decode
_decode_exact: Callable[[bytes], _AnyEnvelope] = msgspec.json.Decoder(_ExactEnvelope).decode
_UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError)


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
        self._strict = strict
        self._kinds = kinds
        self._max_row_bytes = max_row_bytes
        self._pieces: list[bytes] = []
        self._piece_bytes = 0

    @property
    def at_boundary(self) -> bool:
        """Whether everything fed so far belongs to accepted rows."""
        return self.defect is None and self._piece_bytes == 0

    def feed(self, chunk: bytes) -> list[Row]:
        """The rows that `chunk` completes. Raises Misshapen for a row past the cap."""
        rows: list[Row] = []
        decode, is_ordinary = _ORDINARY[min(self._version, _FIRST_EXACT)]
        kinds, most_bytes = self._kinds, self._max_row_bytes
        for line in self._complete_lines(chunk):
            # This loop is where a reading's time goes: one decoding for a row that is plain to see a good one.
            size = len(line)
            if self.defect is None and size <= most_bytes:
                try:
                    envelope = decode(line)
                except _UNDECODED:
                    pass
                else:
                    seq = envelope.seq
                    if seq == self.next_seq and is_ordinary(envelope):
                        self.next_seq = seq + 1
                        self.accepted_bytes += size + 1
                        if kinds is None or envelope.type in kinds:
                            rows.append(Row(envelope.type, seq, 1, line))
                        continue
            self._look_closer(line, rows)
        return rows

    def _complete_lines(self, chunk: bytes) -> list[bytes]:
        first, *rest = chunk.split(b"\n")
        self._pieces.append(first)
        self._piece_bytes += len(first)
        if self._piece_bytes > self._max_row_bytes:
            raise Misshapen(f"row at seq {self.next_seq} is larger than {self._max_row_bytes} bytes")
        if not rest:
            return []
        lines = [b"".join(self._pieces), *rest]
        last = lines.pop()
        self._pieces, self._piece_bytes = [last] if last else [], len(last)
        return lines

    def _look_closer(self, line: bytes, rows: list[Row]) -> None:
        if len(line) > self._max_row_bytes:
            raise Misshapen(f"row at seq {self.next_seq} is larger than {self._max_row_bytes} bytes")
        if self.defect is not None and not _may_matter(line):
            return
        try:
            row = _any_row(line, self._version)
        except _Malformed as error:
            self._note(f"row at seq {self.next_seq} is malformed: {error}")
            return
        if self.defect is None and row.seq == self.next_seq:
            self.next_seq += row.width
            self.accepted_bytes += len(line) + 1
            if self._kinds is None or row.type in self._kinds:
                rows.append(row)
            return
        self._note(f"seq gap: expected {self.next_seq}, got {row.seq if row.seq >= 0 else 'none'}")
        self.condemned = self.condemned or row.type == "turn/end"

    def _note(self, defect: str) -> None:
        if self._strict:
            raise Damage(f"a complete frame holds what is no row: {defect}")
        self.defect = self.defect or defect

    def check(self) -> None:
        """Raises Damage when a closed turn stands at or behind a defect."""
        if self.condemned:
            raise Damage(f"{self.defect}, and a closed turn stands there or behind it")


class _Malformed(Exception):
    """The line is no row of its format version (an "unparsable row" of FORMATS section 8.1)."""


def _may_matter(line: bytes) -> bool:
    """Whether a line behind a defect can be a turn/end, however spelled, or the null that format 0 refuses."""
    return b"turn/end" in line or b"\\" in line or line.strip() == b"null"


# The fast decoders skip payloads, and refuse more than they should (lone surrogates, deep nesting), never less.
# What is left to see of a row that they took: whether it is a good one without a closer look.


def _is_plain(envelope: _AnyEnvelope) -> bool:
    return envelope.type not in _PACKED


def _is_ranged(envelope: _AnyEnvelope) -> bool:
    assert isinstance(envelope, _RangedEnvelope)
    return envelope.type not in _PACKED and envelope.source_event_seqs is msgspec.UNSET


def _is_exact(envelope: _AnyEnvelope) -> bool:
    assert isinstance(envelope, _ExactEnvelope)
    return (
        envelope.ignorable and abs(envelope.time) <= jsontext.MAX_SAFE and envelope.source_event_seqs is msgspec.UNSET
    )


_ORDINARY = ((_decode_plain, _is_plain), (_decode_ranged, _is_ranged), (_decode_exact, _is_exact))
"""By format version, the last for all from there on."""


def _any_row(line: bytes, version: int) -> Row:
    """One row, whatever its seq; `seq` -1 and `type` "" stand for absent or of another type."""
    try:
        record = jsontext.decode(line)
    except ValueError as error:
        raise _Malformed("not JSON") from error
    if record is None and version == 0:
        raise Misshapen("a row is null")
    if not isinstance(record, dict):
        if version == 0:
            return Row("", -1, 1, line)
        raise _Malformed("not an object")
    kind = record.get("type")
    kind = kind if isinstance(kind, str) else ""
    if version >= _FIRST_EXACT:
        _check_exact(record)
    elif kind in _PACKED:
        return _packed_row(kind, record, line)
    seq = jsontext.safe_integer(record.get("seq"))
    seq = -1 if seq is None else seq
    if version >= _FIRST_RANGED and "sourceEventSeqs" in record:
        _check_references(record["sourceEventSeqs"], seq, distinct=version >= _FIRST_EXACT)
    return Row(kind, seq, 1, line)


def _packed_row(kind: str, record: dict[str, Json], line: bytes) -> Row:
    """A run of stream deltas in one row: as many seqs as it has members (FORMATS section 5)."""
    data, seq = record.get("data"), jsontext.safe_integer(record.get("seq0"))
    texts = _PACKED[kind]
    own = {"turn", "step", "index", "dt", texts} | ({"id"} if texts == "args" else set())
    if record.keys() != {"type", "seq0", "time0", "data"} or not isinstance(data, dict):
        raise _Malformed("packed row of another shape")
    if data.keys() - ({"name"} if texts == "args" else set()) != own:
        raise _Malformed("packed row of another shape")
    members, gaps = data[texts], data["dt"]
    if not isinstance(members, list) or not isinstance(gaps, list) or len(gaps) != len(members) - 1:
        raise _Malformed("packed row with unequal lists")
    strings = [*members, *(data[key] for key in ("id", "name") if key in data)]
    numbers = [data["turn"], data["step"], data["index"]]
    if not all(isinstance(text, str) for text in strings) or not all(_is_number(number) for number in numbers):
        raise _Malformed("packed row with members of another type")
    if seq is None or seq < 0 or seq + len(members) - 1 > jsontext.MAX_SAFE:
        raise _Malformed("packed row past the safe integers")
    _check_times([record["time0"], *gaps])
    return Row(kind, seq, len(members), line)


def _check_times(steps: list[Json]) -> None:
    """A first time and the gaps behind it: all safe integers, and so every time that they lead to."""
    time = 0
    for step in steps:
        elapsed = jsontext.safe_integer(step)
        if elapsed is None or abs(time + elapsed) > jsontext.MAX_SAFE:
            raise _Malformed("packed row with times that are no safe integers")
        time += elapsed


def _check_exact(record: dict[str, Json]) -> None:
    """From version 2 on, a row with another envelope is malformed (FORMATS section 8.1)."""
    seq = jsontext.safe_integer(record.get("seq"))
    if (
        not isinstance(record.get("type"), str)
        or seq is None
        or seq < 0
        or jsontext.safe_integer(record.get("time")) is None
        or "data" not in record
        or record.get("ignorable", True) is not True
        or not record.keys() <= _EXACT_MEMBERS
    ):
        raise _Malformed("not the format's exact envelope")


def _check_references(references: Json, seq: int, *, distinct: bool) -> None:
    """Seqs and `[first, last]` ranges, in total no more than there are earlier seqs (FORMATS section 6)."""
    if not isinstance(references, list):
        raise _Malformed("references are no list")
    spans = [_span(reference) for reference in references]
    ranged = any(isinstance(reference, list) for reference in references)
    if sum(last - first + 1 for first, last in spans) > seq:
        raise _Malformed("more references than earlier rows")
    if distinct and (len(set(spans)) < len(spans) or any(last >= seq for _, last in spans)):
        raise _Malformed("references are not distinct earlier seqs")
    if ranged and any(later[0] <= earlier[1] for earlier, later in pairwise(spans)):
        raise _Malformed("references with ranges must increase")


def _span(reference: Json) -> tuple[int, int]:
    match reference:
        case [first, last]:
            bounds = jsontext.count(first), jsontext.count(last)
        case _:
            bounds = jsontext.count(reference), jsontext.count(reference)
    if bounds[0] is None or bounds[1] is None or bounds[0] > bounds[1]:
        raise _Malformed("a reference is neither a seq nor a range")
    return bounds[0], bounds[1]


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
