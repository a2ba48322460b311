"""How most good rows are told with little: `plain` ones, whose payload is skipped over.

Of a plain row only the envelope is decoded; the rest is checked to be JSON, not built. What is not plain may be good
as well: `rows.any_row` has the whole rule.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from persistence.session_log import jsontext
from persistence.session_log.jsontext import MAX_SAFE
from persistence.session_log.rows import (
    FIRST_EXACT,
    PACKED,
    UNDECODED,
    Malformed,
    Row,
    check_references,
)

_START_BYTES = 20
_PACKED_STARTS = {(b'{"type":"%b"' % kind.encode())[:_START_BYTES]: texts for kind, texts in PACKED.items()}
"""How writers begin packed rows, and where their texts are. They are long, so they are decoded only once."""


class _Single(Struct, gc=False, rename="camel"):
    """The envelope of a row that covers one seq, which is -1 where there is none."""

    is_packed: ClassVar[bool] = False
    width: ClassVar[int] = 1

    type: str
    seq: int = -1
    source_event_seqs: Raw | UnsetType = UNSET


class _ExactSingle(_Single, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """From version 2 on: no other members than these (and `ignorable`, which few rows have)."""

    time: Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)]
    data: Raw
    surface_op: Raw | UnsetType = UNSET


class _Deltas(Struct, gc=False, forbid_unknown_fields=True):
    turn: int | float
    step: int | float
    index: int | float
    dt: list[int]
    texts: list[str]


class _ArgumentDeltas(_Deltas, gc=False, forbid_unknown_fields=True):
    id: str
    texts: list[str] = field(name="args")
    name: str | UnsetType = UNSET


class _Packed(Struct, gc=False, forbid_unknown_fields=True):
    """A packed row: a run of stream deltas that covers as many seqs as it has members (FORMATS section 5)."""

    is_packed: ClassVar[bool] = True
    source_event_seqs: ClassVar[UnsetType] = UNSET

    type: str
    seq: Annotated[int, Meta(ge=0)] = field(name="seq0")
    time0: int
    data: _Deltas

    @property
    def width(self) -> int:
        return len(self.data.texts)


class _PackedArguments(_Packed, gc=False, forbid_unknown_fields=True):
    data: _ArgumentDeltas


Envelope: TypeAlias = _Single | _Packed

_decode_single: Callable[[bytes], _Single] = msgspec.json.Decoder(_Single).decode
_decode_exact: Callable[[bytes], _Single] = msgspec.json.Decoder(_ExactSingle).decode
_decode_packed: dict[str, Callable[[bytes], _Packed]] = {
    "texts": msgspec.json.Decoder(_Packed).decode,
    "args": msgspec.json.Decoder(_PackedArguments).decode,
}


class Shape(NamedTuple):
    """How the plain rows of a format version are told."""

    decode: Callable[[bytes], _Single]
    """One line's envelope. Raises one of `UNDECODED`."""
    cites_well: Callable[[Envelope], bool]
    """Whether nothing is wrong with a row's references."""
    packs: bool

    def envelopes(self, lines: Sequence[bytes], *, packed: bool) -> Sequence[Envelope] | None:
        """Each line's envelope, or None when one of them has none. Only if `packed` are packed rows looked for."""
        try:
            if not packed:
                return list(map(self.decode, lines))
            kinds = [_PACKED_STARTS.get(line[:_START_BYTES]) for line in lines]
            return [
                _packed(line, texts) if texts else self.decode(line) for line, texts in zip(lines, kinds, strict=True)
            ]
        except UNDECODED:
            return None

    def end_of(self, envelopes: Sequence[Envelope], first_seq: int) -> int | None:
        """The seq behind these rows; None unless all are plain and follow one another from `first_seq` on."""
        end = first_seq + len(envelopes)
        if [envelope.seq for envelope in envelopes] != list(range(first_seq, end)):
            end = first_seq
            for envelope in envelopes:
                if envelope.seq != end:
                    return None
                end += envelope.width
        if self.packs and any(not envelope.is_packed for envelope in envelopes if envelope.type in PACKED):
            return None
        citing = [envelope for envelope in envelopes if envelope.source_event_seqs is not UNSET]
        return end if all(map(self.cites_well, citing)) else None

    def row(self, line: bytes) -> Row | None:
        """The line as a row, whatever its seq; None for one that is not plain."""
        envelope: Envelope
        try:
            envelope = self.decode(line)
            if self.packs and envelope.type in PACKED:
                envelope = _packed(line, PACKED[envelope.type])
        except UNDECODED:
            return None
        if not 0 <= envelope.seq <= MAX_SAFE or not self.cites_well(envelope):
            return None
        return Row(envelope.type, envelope.seq, envelope.width, line)


def shape_of(version: int) -> Shape:
    """The shape of a format version's rows."""
    return _SHAPES[min(version, FIRST_EXACT)]


def _packed(line: bytes, texts: str) -> _Packed:
    """The envelope of a packed row with its texts in the member `texts`. Raises one of `UNDECODED` when not plain."""
    packed = _decode_packed[texts](line)
    gaps, last_seq = packed.data.dt, packed.seq + packed.width - 1
    times = abs(packed.time0) + sum(map(abs, gaps))
    if PACKED.get(packed.type) != texts or len(gaps) != packed.width - 1 or max(last_seq, times) > MAX_SAFE:
        raise ValueError("a packed row that is not plain")
    return packed


def _cites_anything(_: Envelope) -> bool:
    return True


def _cites_ranges(envelope: Envelope) -> bool:
    return _cites(envelope, distinct=False)


def _cites_distinct(envelope: Envelope) -> bool:
    return _cites(envelope, distinct=True)


def _cites(envelope: Envelope, *, distinct: bool) -> bool:
    if envelope.source_event_seqs is UNSET:
        return True
    try:
        check_references(jsontext.decode(bytes(envelope.source_event_seqs)), envelope.seq, distinct=distinct)
    except Malformed:
        return False
    return True


_SHAPES = (
    Shape(_decode_single, _cites_anything, packs=True),
    Shape(_decode_single, _cites_ranges, packs=True),
    Shape(_decode_exact, _cites_distinct, packs=False),
)
"""By format version, the last for all from there on."""
