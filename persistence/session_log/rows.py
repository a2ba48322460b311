"""What is a row of a log, and what is none (FORMATS sections 4 to 6 and 8.1).

Here is the whole rule, for any row. Most are told to be good with less: `shapes`.
"""

from itertools import pairwise

import msgspec
from msgspec import Struct

from persistence.session_log import jsontext
from persistence.session_log.damage import Misshapen
from persistence.session_log.jsontext import Json

UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError)
"""What the fast decoders raise. They refuse more than they should (lone surrogates, deep nesting), never less."""
PACKED = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
"""The types of packed rows (formats 0 and 1; FORMATS section 5), and which member holds what was packed."""
FIRST_EXACT = 2
"""The first format version that takes no other members than its own."""
_FIRST_RANGED = 1
_EXACT_MEMBERS = frozenset(("type", "seq", "time", "data", "ignorable", "surfaceOp", "sourceEventSeqs"))


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
    if version >= FIRST_EXACT:
        _check_exact(record)
    elif kind in PACKED:
        return _packed_row(kind, record, line)
    seq = jsontext.safe_integer(record.get("seq"))
    seq = -1 if seq is None else seq
    if version >= _FIRST_RANGED and "sourceEventSeqs" in record:
        check_references(record["sourceEventSeqs"], seq, distinct=version >= FIRST_EXACT)
    return Row(kind, seq, 1, line)


def _packed_row(kind: str, record: dict[str, Json], line: bytes) -> Row:
    """A run of stream deltas in one row: as many seqs as it has members (FORMATS section 5)."""
    data, seq = record.get("data"), jsontext.safe_integer(record.get("seq0"))
    texts = PACKED[kind]
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


def check_references(references: Json, seq: int, *, distinct: bool) -> None:
    """Seqs and `[first, last]` ranges, in total no more than there are earlier seqs (FORMATS section 6).

    Raises Malformed for others.
    """
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
