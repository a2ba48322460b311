"""JSON as JavaScript reads and writes it (FORMATS section 17)."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.session_log import jsontext
from persistence.session_log.damage import Misshapen
from persistence.session_log.jsontext import _decode_deep

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"[Infinity]", b"-Infinity", b"", b"01", b"1.", b"+1", b"\xef\xbb\xbf1", b"1 2", b'"\x01"', rb'"\q"',
     b"[1,]", b'{"a":1,}', b"{a:1}", b"1\x0b", b"\x00", b"[" * 3000 + b"1," + b"]" * 3000,
     b'{"a":' * 3000 + b"NaN" + b"}" * 3000],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        jsontext.decode(text)


def test_numbers_never_overflow_into_an_error() -> None:
    assert jsontext.decode(b"[1e999, -1e999]") == [math.inf, -math.inf]
    assert jsontext.decode(b"9" * 5000) == math.inf
    assert jsontext.decode(b"12345678901234567890123") == 12345678901234567890123.0


def test_safe_integers_are_judged_by_value() -> None:
    """`5.0` and `1e3` are integers, negative zero is one but no count, booleans and text are none."""
    values = jsontext.decode(b'[5.0, 1e3, -0, -0.0, 0, 1.5, 9007199254740991, 9007199254740992, true, "1", 1e999]')
    assert isinstance(values, list)
    none = [None] * 2
    assert [jsontext.safe_integer(value) for value in values] == [5, 1000, 0, 0, 0, None, 2**53 - 1, None, *none, None]
    assert [jsontext.count(value) for value in values] == [5, 1000, None, None, 0, None, 2**53 - 1, None, *none, None]


def test_text_is_utf16_in_spirit() -> None:
    """Escaped pairs become one character, lone surrogates stay, bad UTF-8 becomes U+FFFD, the last duplicate wins."""
    assert jsontext.decode(rb'"\ud83d\ude80"') == "\U0001f680"
    assert jsontext.decode(rb'"\ud800"') == "\ud800"
    assert jsontext.decode(b'"\xff\xed\xa0\x80"') == "\ufffd" * 4
    assert jsontext.decode(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deep_nesting_is_read_without_recursion(depth: int) -> None:
    value = jsontext.decode(b'{"a":[' * depth + b' "x" , {} , [] ' + b"]}" * depth)
    for _ in range(depth):
        assert isinstance(value, dict)
        value = value["a"]
        assert isinstance(value, list)
        if len(value) == 1:
            value = value[0]
    assert value == ["x", {}, []]


def test_nesting_past_all_reason_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(Misshapen, match="262144 levels"):
        jsontext.decode(b"[" * 1_000_000)


@given(JSON)
def test_the_deep_decoder_agrees_with_the_fast_one(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        assert repr(_decode_deep(text)) == repr(jsontext.decode(text.encode()))


@given(st.text(st.characters(exclude_categories=())))
def test_encoding_gives_back_what_decoding_reads(text: str) -> None:
    """Any text survives, lone surrogates as lower-case escapes, everything else as plain UTF-8."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert jsontext.decode(jsontext.encode({"t": whole})) == {"t": whole}


def test_encoding_is_that_of_the_original() -> None:
    value = {"b": ['\u2028\x7f/\ud800"\\\b\x01', 1, None, True], "a": {}}
    assert jsontext.encode(value) == '{"b":["\u2028\x7f/\\ud800\\"\\\\\\b\\u0001",1,null,true],"a":{}}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        jsontext.encode({"n": math.nan})
