"""The row scan: which rows are taken, what is a torn tail, what is corruption (FORMATS sections 5 and 8.1)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.session_log.damage import Damage, Misshapen
from persistence.session_log.rows import Row, RowScanner

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


@given(st.lists(st.integers(1, 40)))
def test_rows_do_not_depend_on_how_the_text_comes_in_pieces(sizes: list[int]) -> None:
    rows: list[Row] = []
    scanner, rest = RowScanner(0, 0, 10_000), TEXT
    for size in sizes:
        rows += scanner.feed(rest[:size])
        rest = rest[size:]
    rows += scanner.feed(rest) if rest else []
    assert rows == scan(TEXT)[0]
    assert scanner.at_boundary
    assert scanner.accepted_bytes == len(TEXT)


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
    assert [row[:3] for row in rows] == [row[:3] for row in slow_rows]
    assert (scanner.defect is None, scanner.condemned) == (slow.defect is None, slow.condemned)
