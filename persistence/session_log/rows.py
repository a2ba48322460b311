"""What is a row of a log, and what is none (FORMATS sections 4 to 6 and 8.1).

A row's payload is skipped over (checked to be JSON, not built) until someone asks for it:
what the barrier needs of most rows is their `type` and `seq`, the `Envelope`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from persistence.session_log import jsontext
from persistence.session_log.damage import Misshapen
from persistence.session_log.jsontext import MAX_SAFE, Json

T = TypeVar("T")

UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError)
"""What the fast decoders raise. They refuse more than they should (lone surrogates, deep nesting), never less."""
_PACKED = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
_EXACT_MEMBERS = frozenset(("type", "seq", "time", "data", "ignorable", "surfaceOp", "sourceEventSeqs"))
_FIRST_RANGED, _FIRST_EXACT = 1, 2


class Row(Struct, frozen=True, gc=False):
    """One accepted row: its first seq, how many seqs it covers (packed rows: several), and its line, break included."""

    type: str
    seq: int
    width: int
    line: bytes

    def document(self) -> dict[str, Json]:
        """The whole row."""
        document: Json
        try:
            document = msgspec.json.decode(self.line)
        except UNDECODED:
            document = jsontext.decode(self.line)
        assert isinstance(document, dict)
        return document


class Malformed(Exception):
    """The line is no row of its format version (an "unparsable row" of FORMATS section 8.1)."""


class Envelope(Struct, gc=False, rename="camel"):
    """What is decoded of each row; its other members are only checked to be JSON. `seq` is -1 where there is none."""

    type: str
    seq: int = -1
    source_event_seqs: Raw | UnsetType = UNSET


class _ExactEnvelope(Envelope, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """From version 2 on: no other members than these (and `ignorable`, which few rows have)."""

    time: Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)]
    data: Raw
    surface_op: Raw | UnsetType = UNSET


class Shape(NamedTuple):
    """How the good rows of a format version are told without building them.

    A row that is plain is a good one. One that is not may be good as well: `any_row` looks closer.
    """

    decode: Callable[[bytes], Envelope]
    """One line's envelope. Raises one of `UNDECODED`."""
    is_plain: Callable[[Envelope], bool]
    """Whether nothing but its seq can be wrong with a row."""
    packs: bool

    def envelopes(self, lines: Sequence[bytes]) -> list[Envelope] | None:
        """Each line's envelope, or None when one of them has none that can be decoded."""
        try:
            return list(map(self.decode, lines))
        except UNDECODED:
            return None

    def envelope(self, line: bytes) -> Envelope | None:
        """One line's envelope, or None when it has none that can be decoded."""
        try:
            return self.decode(line)
        except UNDECODED:
            return None

    def are_plain(self, envelopes: Sequence[Envelope]) -> bool:
        """Whether all of these are plain."""
        odd = [
            envelope for envelope in envelopes if envelope.type in _PACKED or envelope.source_event_seqs is not UNSET
        ]  # of the others all are, in any format
        return all(map(self.is_plain, odd))

    def plain_row(self, envelope: Envelope, line: bytes) -> Row | None:
        """The row of this envelope and line, whatever its seq; None for one that is not plain."""
        if self.packs and envelope.type in _PACKED:
            return _plain_packed_row(envelope.type, line)
        plain = 0 <= envelope.seq <= MAX_SAFE and self.is_plain(envelope)
        return Row(envelope.type, envelope.seq, 1, line) if plain else None


def shape_of(version: int) -> Shape:
    """The shape of a format version's rows."""
    return _SHAPES[min(version, _FIRST_EXACT)]


def _is_single(envelope: Envelope) -> bool:
    return envelope.type not in _PACKED


def _is_ranged(envelope: Envelope) -> bool:
    return envelope.type not in _PACKED and _cites_well(envelope, distinct=False)


def _is_exact(envelope: Envelope) -> bool:
    return _cites_well(envelope, distinct=True)


def _cites_well(envelope: Envelope, *, distinct: bool) -> bool:
    if envelope.source_event_seqs is UNSET:
        return True
    try:
        _check_references(jsontext.decode(bytes(envelope.source_event_seqs)), envelope.seq, distinct=distinct)
    except Malformed:
        return False
    return True


_decode_envelope: Callable[[bytes], Envelope] = msgspec.json.Decoder(Envelope).decode
_decode_exact: Callable[[bytes], Envelope] = msgspec.json.Decoder(_ExactEnvelope).decode
_SHAPES = (
    Shape(_decode_envelope, _is_single, packs=True),
    Shape(_decode_envelope, _is_ranged, packs=True),
    Shape(_decode_exact, _is_exact, packs=False),
)
"""By format version, the last for all from there on."""


def any_row(line: bytes, version: int) -> Row:
    """One row, whatever its seq; `seq` -1 and `type` "" stand for absent or of another type.

    Raises Malformed for a line that is none; Misshapen for the null that format 0 refuses, and for one nested past
    all reason.
    """
    try:
        record = jsontext.decode(line)
    except ValueError as error:
        raise Malformed("not JSON") from error
    if record is None and version == 0:
        raise Misshapen("a row is null")
    if not isinstance(record, dict):
        if version == 0:
            return Row("", -1, 1, line)
        raise Malformed("not an object")
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


class _PackedTexts(Struct, gc=False, forbid_unknown_fields=True):
    turn: int | float
    step: int | float
    index: int | float
    dt: list[int]
    texts: list[str]


class _PackedArguments(Struct, gc=False, forbid_unknown_fields=True):
    turn: int | float
    step: int | float
    index: int | float
    id: str
    dt: list[int]
    texts: list[str] = field(name="args")
    name: str | UnsetType = UNSET


class _PackedRow(Struct, Generic[T], gc=False, forbid_unknown_fields=True):
    type: str
    seq0: Annotated[int, Meta(ge=0)]
    time0: int
    data: T


_decode_packed_texts = msgspec.json.Decoder(_PackedRow[_PackedTexts]).decode
_decode_packed_arguments = msgspec.json.Decoder(_PackedRow[_PackedArguments]).decode


def _plain_packed_row(kind: str, line: bytes) -> Row | None:
    """As `_packed_row`, for one that needs no closer look; None for others."""
    decode = _decode_packed_arguments if _PACKED[kind] == "args" else _decode_packed_texts
    try:
        packed = decode(line)
    except UNDECODED:
        return None
    width, gaps = len(packed.data.texts), packed.data.dt
    times = abs(packed.time0) + sum(map(abs, gaps))
    if len(gaps) != width - 1 or packed.seq0 + width - 1 > MAX_SAFE or times > MAX_SAFE:
        return None
    return Row(kind, packed.seq0, width, line)


def _packed_row(kind: str, record: dict[str, Json], line: bytes) -> Row:
    """A run of stream deltas in one row: as many seqs as it has members (FORMATS section 5)."""
    data, seq = record.get("data"), jsontext.safe_integer(record.get("seq0"))
    texts = _PACKED[kind]
    own = {"turn", "step", "index", "dt", texts} | ({"id"} if texts == "args" else set())
    if record.keys() != {"type", "seq0", "time0", "data"} or not isinstance(data, dict):
        raise Malformed("packed row of another shape")
    if data.keys() - ({"name"} if texts == "args" else set()) != own:
        raise Malformed("packed row of another shape")
    members, gaps = data[texts], data["dt"]
    if not isinstance(members, list) or not isinstance(gaps, list) or len(gaps) != len(members) - 1:
        raise Malformed("packed row with unequal lists")
    strings = [*members, *(data[key] for key in ("id", "name") if key in data)]
    numbers = [data["turn"], data["step"], data["index"]]
    if not all(isinstance(text, str) for text in strings) or not all(_is_number(number) for number in numbers):
        raise Malformed("packed row with members of another type")
    if seq is None or seq < 0 or seq + len(members) - 1 > jsontext.MAX_SAFE:
        raise Malformed("packed row past the safe integers")
    _check_times([record["time0"], *gaps])
    return Row(kind, seq, len(members), line)


def _check_times(steps: list[Json]) -> None:
    """A first time and the gaps behind it: all safe integers, and so every time that they lead to."""
    time = 0
    for step in steps:
        elapsed = jsontext.safe_integer(step)
        if elapsed is None or abs(time + elapsed) > jsontext.MAX_SAFE:
            raise Malformed("packed row with times that are no safe integers")
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
        raise Malformed("not the format's exact envelope")


def _check_references(references: Json, seq: int, *, distinct: bool) -> None:
    """Seqs and `[first, last]` ranges, in total no more than there are earlier seqs (FORMATS section 6)."""
    if not isinstance(references, list):
        raise Malformed("references are no list")
    spans = [_span(reference) for reference in references]
    ranged = any(isinstance(reference, list) for reference in references)
    if sum(last - first + 1 for first, last in spans) > seq:
        raise Malformed("more references than earlier rows")
    if distinct and (len(set(spans)) < len(spans) or any(last >= seq for _, last in spans)):
        raise Malformed("references are not distinct earlier seqs")
    if ranged and any(later[0] <= earlier[1] for earlier, later in pairwise(spans)):
        raise Malformed("references with ranges must increase")


def _span(reference: Json) -> tuple[int, int]:
    match reference:
        case [first, last]:
            bounds = jsontext.count(first), jsontext.count(last)
        case _:
            bounds = jsontext.count(reference), jsontext.count(reference)
    if bounds[0] is None or bounds[1] is None or bounds[0] > bounds[1]:
        raise Malformed("a reference is neither a seq nor a range")
    return bounds[0], bounds[1]


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
