"""The row scan: which rows are taken, what is a torn tail, what is corruption (FORMATS sections 5 and 8.1)."""

import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.session_log import rows
from persistence.session_log.damage import Damage, Misshapen
from persistence.session_log.rows import Row
from persistence.session_log.scanner import RowScanner
from persistence.session_log.shapes import shape_of

EVENTS = [{"type": "turn/start", "seq": seq, "time": seq, "data": {"text": "x" * seq}} for seq in range(6)]
TEXT = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
END = b'{"type":"turn/end","seq":99,"time":1,"data":{}}\n'
PACKED = {
    "type": "text-chunks",
    "seq0": 0,
    "time0": 5,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [1, -2], "texts": ["a", "b", "c"]},
}


def scan(text: bytes, *, version: int = 0, cap: int = 10_000) -> tuple[list[Row], RowScanner]:
    scanner = RowScanner(version, 0, cap)
    return list(scanner.feed(text)), scanner


def _event(seq: int, **members: object) -> bytes:
    return json.dumps({"type": "user/message", "seq": seq, "time": 1, "data": {}} | members).encode() + b"\n"


def _packed(seq: int, **members: object) -> bytes:
    return json.dumps({**PACKED, "seq0": seq} | members).encode() + b"\n"


LINES: list[Callable[[int], bytes]] = [
    _event,
    lambda seq: _event(seq, ignorable=True),
    lambda seq: _event(seq, data="\ud800"),
    lambda seq: _event(seq).replace(b"\n", b" \r\n"),
    lambda seq: _event(seq, sourceEventSeqs=[seq - 1] if seq else []),
    _packed,
    lambda seq: _packed(seq, time0="never"),
    lambda seq: _event(seq, sourceEventSeqs=[seq]),
    lambda seq: _event(seq, type="text-chunks"),
    lambda seq: _event(seq + 1),
    lambda seq: _event(seq, type="turn/end"),
    lambda seq: _event(seq)[:-1] + _event(seq + 1),
    lambda seq: _event(seq).replace(b"{", b"{\n", 1),
    lambda _: b"\n",
    lambda _: b"null\n",
]
"""Rows of all kinds, and what is none, for a place in the log. Most of a log are ordinary ones."""


@given(
    kinds=st.lists(st.one_of(st.just(0), st.just(0), st.integers(0, len(LINES) - 1)), max_size=12),
    cuts=st.lists(st.integers(1, 300)),
    version=st.integers(0, 4),
)
def test_rows_do_not_depend_on_how_the_text_comes_in_pieces(kinds: list[int], cuts: list[int], version: int) -> None:
    """Taken at once, one by one or torn apart: the same rows, the same defect, the same refusal."""
    text, seq = b"", 0
    for kind in kinds:
        line = LINES[kind](seq)
        text, seq = text + line, seq + (3 if LINES[kind] is _packed else 1)
    at, pieces = 0, []
    for size in [*cuts, len(text)]:
        pieces.append(text[at : at + size])
        at += size
    assert _outcome([text], version) == _outcome(text.splitlines(keepends=True), version) == _outcome(pieces, version)


def _outcome(pieces: Iterable[bytes], version: int) -> object:
    scanner, rows = RowScanner(version, 0, 10_000), []
    try:
        for piece in pieces:
            rows += scanner.feed(piece)
    except Misshapen as refusal:
        return str(refusal)
    return rows, scanner.next_seq, scanner.accepted_bytes, scanner.at_boundary, scanner.defect, scanner.condemned


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("defect", [b"\n", b"{\n", b'"x"\n', b"NaN\n", b'{"type":"a","seq":9,"time":1,"data":{}}\n'])
def test_a_defect_ends_the_log_unless_a_turn_was_closed_behind_it(version: int, defect: bytes) -> None:
    """Rows before it stay, it and later ones are left out; with a turn/end behind it the log is corrupt."""
    rows, scanner = scan(TEXT + defect + TEXT, version=version)
    assert [row.seq for row in rows] == [0, 1, 2, 3, 4, 5]
    assert (scanner.accepted_bytes, scanner.at_boundary) == (len(TEXT), False)
    scanner.check()
    _, scanner = scan(TEXT + defect + END, version=version)
    with pytest.raises(Damage, match="closed turn"):
        scanner.check()


def test_a_turn_end_out_of_sequence_condemns_the_log_itself() -> None:
    _, scanner = scan(TEXT + END)
    with pytest.raises(Damage, match="seq gap: expected 6, got 99"):
        scanner.check()


def test_a_turn_end_behind_a_defect_is_seen_however_it_is_spelled() -> None:
    for spelled in (rb'"turn\/end"', rb'"\u0074urn/end"'):
        _, scanner = scan(TEXT + b"{\n" + END.replace(b'"turn/end"', spelled))
        assert scanner.condemned


def test_a_strict_scan_takes_no_defect() -> None:
    """Inside of a complete frame every byte belongs to a row."""
    for defect in (b"\n", b"{}\n", TEXT):
        with pytest.raises(Damage, match="no row"):
            list(RowScanner(0, 6, 10_000, strict=True).feed(defect))


def test_an_unfinished_line_is_never_a_row() -> None:
    rows, scanner = scan(TEXT[:-1])
    assert len(rows) == len(EVENTS) - 1
    assert not scanner.at_boundary
    scanner.check()


@pytest.mark.parametrize("tail", [b"", b"\n"])
def test_a_row_past_the_cap_is_refused_finished_or_not(tail: bytes) -> None:
    with pytest.raises(Misshapen, match="larger than 100 bytes"):
        scan(b'{"type":"a","seq":0,"x":"' + b"x" * 100 + b'"}' + tail, cap=100)


def test_a_null_row_is_refused_in_format_0_and_a_defect_later() -> None:
    with pytest.raises(Misshapen, match="null"):
        scan(b"null\n")
    assert scan(b"null\n", version=1)[1].defect is not None


def test_a_row_says_its_type_its_seq_and_its_line() -> None:
    """Only those of the wanted types are given, and all are checked."""
    scanner = RowScanner(0, 0, 10_000, kinds={"turn/end"})
    end = END.replace(b"99", b"6")
    assert scanner.feed(TEXT + end) == [Row("turn/end", 6, 1, end)]
    assert (scanner.next_seq, scanner.accepted_bytes) == (7, len(TEXT + end))
    assert scanner.feed(b"{}\n" + end) == []
    assert scanner.defect is not None


@pytest.mark.parametrize("version", [0, 1])
def test_a_packed_row_covers_as_many_seqs_as_it_has_members(version: int) -> None:
    rows, scanner = scan(json.dumps(PACKED).encode() + b"\n", version=version)
    assert [(row.seq, row.width) for row in rows] == [(0, 3)]
    assert scanner.next_seq == 3
    assert scan(json.dumps(PACKED).encode() + b"\n", version=2)[1].defect is not None


@pytest.mark.parametrize(
    "change",
    [
        {"seq0": -1}, {"seq0": 2**53 - 2}, {"seq0": "0"}, {"time0": 1.5}, {"time0": 2**53 - 1}, {"more": 1},
        {"data": None}, {"dt": [1]}, {"dt": [1, 0.5]}, {"dt": [1, None]}, {"texts": []}, {"texts": ["a", "b", 1]},
        {"texts": "abc"}, {"turn": "1"}, {"index": True}, {"name": "n"}, {"id": "i"},
    ],
)  # fmt: skip
def test_a_packed_row_of_another_shape_is_no_row(change: dict[str, object]) -> None:
    outer = {"seq0", "time0", "more", "data"}
    data = {**PACKED["data"], **{k: v for k, v in change.items() if k not in outer}}  # type: ignore[dict-item]  # a dict
    row = {**PACKED, "data": data, **{k: v for k, v in change.items() if k in outer}}
    _, scanner = scan(json.dumps(row).encode() + b"\n")
    assert scanner.defect is not None
    assert "malformed" in scanner.defect


@given(
    gaps=st.lists(st.sampled_from([0, 1, -5, 2.0, 0.5, 2**53 - 1, -(2**53), 10**30, True, None, "1"]), max_size=3),
    texts=st.lists(st.sampled_from(["", "a", "\ud800", 1]), max_size=3),
    numbers=st.tuples(*[st.sampled_from([0, 5, -1, 1.5, -0.0, 2**53 - 3, 2**53, 10**400, True, "x"])] * 3),
    kind=st.sampled_from(["text-chunks", "tool-call-chunks"]),
)
def test_a_packed_row_that_is_plain_is_what_a_closer_look_finds(
    gaps: list[object], texts: list[object], numbers: tuple[object, object, object], kind: str
) -> None:
    first, time, turn = numbers
    data = {"turn": turn, "step": 1, "index": 0, "dt": gaps, "texts": texts}
    if kind == "tool-call-chunks":
        data = {"turn": 1, "step": turn, "index": 0, "id": "call", "dt": gaps, "args": texts}
    line = json.dumps({"type": kind, "seq0": first, "time0": time, "data": data}).encode() + b"\n"
    plain = shape_of(0).row(line)
    if plain is not None:
        assert plain == rows.any_row(line, 0)


@pytest.mark.parametrize(
    ("references", "good"),
    [([], True), ([3, 1], True), ([[0, 2], 4], True), ([4, [0, 2]], False), ([[0, 2**60]], False), ([[2, 1]], False),
     ([-1], False), (["1"], False), ([[1]], False), ({}, False), ([0, 1, 2, 3, 4, 0], False)],
)  # fmt: skip
def test_references_may_come_in_increasing_ranges(references: object, good: bool) -> None:
    """Versions 1 and later: never more references than earlier rows, and nothing is expanded to find that out."""
    event = {"type": "user/message", "seq": 5, "time": 1, "data": {}, "sourceEventSeqs": references}
    for version in (1, 2, 3, 4):
        scanner = RowScanner(version, 5, 10_000)
        rows = list(scanner.feed(json.dumps(event).encode() + b"\n"))
        assert (len(rows) == 1) is good


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"ignorable": False},
        {"time": 1.5},
        {"time": 2**53},
        {"seq": -1},
        {"seq": ...},
        {"type": 1},
        {"data": ...},
    ],
)
@pytest.mark.parametrize("version", [2, 3, 4])
def test_later_versions_take_only_the_exact_envelope(version: int, change: dict[str, object]) -> None:
    event = {"type": "a", "seq": 0, "time": 1, "data": {}, "ignorable": True} | change
    event = {key: value for key, value in event.items() if value is not ...}
    assert scan(json.dumps(event).encode() + b"\n", version=version)[1].defect is not None
    assert scan(json.dumps(event | {"sourceEventSeqs": []}).encode() + b"\n", version=version)[1].defect is not None


@given(
    st.dictionaries(
        st.sampled_from(["type", "seq", "time", "ignorable", "sourceEventSeqs", "surfaceOp"]),
        st.sampled_from(
            [0, 1, -0.0, 0.0, 1e0, True, None, "turn/end", "text-chunks", "\ud800", [], {}, [[0, 1]], 2**60]
        ),
    ),
    st.integers(0, 4),
)
def test_the_fast_path_decides_as_the_slow_one(record: dict[str, object], version: int) -> None:
    """A lone surrogate in the payload, which the fast decoder refuses, changes nothing."""
    rows, scanner = scan(json.dumps(record | {"data": "x"}).encode() + b"\n", version=version)
    slow_rows, slow = scan(json.dumps(record | {"data": "\ud800"}).encode() + b"\n", version=version)
    assert [(row.type, row.seq, row.width) for row in rows] == [(row.type, row.seq, row.width) for row in slow_rows]
    assert (scanner.defect is None, scanner.condemned) == (slow.defect is None, slow.condemned)
