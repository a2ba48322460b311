"""The note's rules, exhaustively: what is blank, and how large a note is."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.notes import ECMASCRIPT_BLANKS, is_blank, utf8_size

FIXTURE = Path(__file__).parents[2].parent / "shared" / "fixtures" / "transcript" / "js-trim-whitespace.json"

# CONTRACT, "Rules of `put`", 2, as it is written there.
CONTRACT = {
    *range(0x0009, 0x000E),
    0x0020,
    0x00A0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
    0xFEFF,
}


def test_the_blanks_are_the_contracts() -> None:
    """Every code point of Unicode, surrogates included: blank exactly when the contract lists it."""
    assert {code for code in range(sys.maxunicode + 1) if is_blank(chr(code))} == CONTRACT
    assert sorted(map(ord, ECMASCRIPT_BLANKS)) == sorted(CONTRACT)


@pytest.mark.skipif(not FIXTURE.is_file(), reason="the recorded list is not here")
def test_the_blanks_are_those_that_a_javascript_engine_trims() -> None:
    """The list that was taken from one, and the near misses that it did not trim."""
    recorded = json.loads(FIXTURE.read_text(encoding="ascii"))
    assert set(recorded["codePoints"]) == CONTRACT
    assert not any(is_blank(chr(code)) for code in recorded["nearMissesTried"])


@pytest.mark.parametrize("code", [0x1C, 0x1D, 0x1E, 0x1F, 0x85])
def test_what_only_python_strips_is_text(code: int) -> None:
    """`str.strip()` would call these blank."""
    assert not chr(code).strip()
    assert not is_blank(chr(code))


@pytest.mark.parametrize("code", [0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0x00AD, 0x2800, 0x3164, 0x0000])
def test_what_only_looks_empty_is_text(code: int) -> None:
    """Zero-width and filler characters are no white space."""
    assert not is_blank(chr(code))


def test_python_and_the_contract_disagree_about_the_byte_order_mark() -> None:
    """The contract strips it, Python does not."""
    assert is_blank("\ufeff")
    assert "\ufeff".strip()


def test_an_empty_note_is_blank() -> None:
    """Leaving the note out is how one clears it."""
    assert is_blank("")


@given(st.text(st.sampled_from(ECMASCRIPT_BLANKS)), st.text(st.sampled_from(ECMASCRIPT_BLANKS)))
def test_one_character_makes_a_note(before: str, after: str) -> None:
    """Whatever stands around it."""
    assert is_blank(before + after)
    assert not is_blank(before + "." + after)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_size_is_in_utf8_bytes(note: str) -> None:
    """Not characters, not UTF-16 units."""
    assert utf8_size(note) == len(note.encode())


def test_sizes_at_each_length_of_utf8() -> None:
    """One to four bytes a character."""
    assert [utf8_size(text) for text in ("", "a", "\x7f", "\x80", "\u07ff", "\u0800", "\uffff", "🚀")] == [
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
    ]
