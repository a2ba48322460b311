"""Requests are closed: what is not the contract's shape is an `InvalidRequest`, with path and reason."""

import json
from types import MappingProxyType
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import InvalidRequest
from feedback.requests import Delete, ListRequest, Put, check_text, check_timeout, parse_request

Operation = Literal["list", "put", "delete"]

LIST: dict[str, Any] = {"sessionId": "s"}
PUT: dict[str, Any] = {"sessionId": "s", "messageId": "m", "rating": "positive", "note": "n", "ifVersion": "v"}
DELETE: dict[str, Any] = {"sessionId": "s", "messageId": "m", "ifVersion": "v"}
SHAPES: tuple[tuple[Operation, dict[str, Any]], ...] = (("list", LIST), ("put", PUT), ("delete", DELETE))
MEMBERS: list[tuple[Operation, dict[str, Any], str]] = [(op, shape, name) for op, shape in SHAPES for name in shape]
LONE = ("\ud800", "a\udfff", "\udc00\ud800", "\ud83d")


def refusal(operation: Operation, document: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(operation, document)
    assert str(caught.value) == f"{caught.value.path}: {caught.value.reason}"
    return caught.value


def test_the_contracts_requests_are_read_to_the_letter() -> None:
    """Every member arrives; `note` may be left out, `ifVersion` may be null."""
    assert parse_request("list", LIST) == ListRequest("s")
    assert parse_request("put", PUT) == Put("s", "m", "positive", "n", "v")
    assert parse_request("put", json.dumps(PUT)) == parse_request("put", json.dumps(PUT).encode())
    without = {"sessionId": "", "messageId": "", "rating": "negative", "ifVersion": None}
    assert parse_request("put", without) == Put("", "", "negative")
    assert parse_request("delete", DELETE) == Delete("s", "m", "v")
    assert parse_request("delete", DELETE | {"ifVersion": None}) == Delete("s", "m")
    assert parse_request("delete", MappingProxyType(DELETE)) == Delete("s", "m", "v")


def test_any_well_formed_text_is_an_id() -> None:
    """Ids are data: separators, NUL, dots, astral characters and prototype names pass unchanged."""
    for text in ("../..", "\0", "🚀", "__proto__", "e\u0301", "\uffff", " "):
        assert parse_request("list", json.dumps({"sessionId": text})) == ListRequest(text)


@pytest.mark.parametrize(("operation", "shape"), SHAPES)
def test_an_unknown_member_is_refused(operation: Operation, shape: dict[str, Any]) -> None:
    """Also one that the system itself adds elsewhere."""
    for name in ("extra", "actor", "commandId", "expiresAt", "session_id", ""):
        error = refusal(operation, shape | {name: "x"})
        assert error.path == "$"
        assert name in error.reason


@pytest.mark.parametrize(("operation", "shape", "name"), MEMBERS)
def test_a_missing_member_is_refused(operation: Operation, shape: dict[str, Any], name: str) -> None:
    """All are required but `note`: leaving `ifVersion` out does not mean "create only"."""
    rest = {key: value for key, value in shape.items() if key != name}
    if name == "note":
        assert parse_request(operation, rest) == Put("s", "m", "positive", None, "v")
    else:
        error = refusal(operation, rest)
        assert (error.path, name in error.reason) == ("$", True)


@pytest.mark.parametrize(("operation", "shape", "name"), MEMBERS)
def test_a_wrong_type_is_refused_with_its_path(operation: Operation, shape: dict[str, Any], name: str) -> None:
    """Nothing is coerced; null stands for no value in `ifVersion` alone."""
    wrong: list[Any] = [0, 1.5, True, float("nan"), float("inf"), [], ["x"], {}, {"a": 1}, b"s", 10**30]
    if name != "ifVersion":
        wrong.append(None)
    for value in wrong:
        assert refusal(operation, shape | {name: value}).path == f"$.{name}"


@pytest.mark.parametrize("rating", ["", "Positive", "neutral", "positive ", "1", "\u0000", "positive\u0301"])
def test_a_rating_is_one_of_two_words(rating: str) -> None:
    """To the letter."""
    assert refusal("put", PUT | {"rating": rating}).path == "$.rating"


@pytest.mark.parametrize(("operation", "shape", "name"), MEMBERS)
def test_a_lone_surrogate_is_refused_at_every_member(operation: Operation, shape: dict[str, Any], name: str) -> None:
    """As a Python string and as a JSON escape, with the path of the member."""
    for text in LONE:
        for document in (shape | {name: text}, json.dumps(shape | {name: text})):
            error = refusal(operation, document)
            assert error.path == f"$.{name}"
            assert "lone surrogate" in error.reason


def test_a_surrogate_pair_is_one_character() -> None:
    """JSON escapes an astral character as two halves; together they are well-formed."""
    assert parse_request("list", '{"sessionId": "\\ud83d\\ude80"}') == ListRequest("🚀")


@pytest.mark.parametrize(("operation", "shape"), SHAPES)
def test_a_lone_surrogate_in_a_members_name_is_refused(operation: Operation, shape: dict[str, Any]) -> None:
    """And the refusal itself can be written anywhere."""
    for document in (shape | {"\ud800": "x"}, json.dumps(shape | {"\ud800": "x"}), '{"\\ud800": 1, "\\ud800": 2}'):
        str(refusal(operation, document)).encode()


def test_a_member_that_occurs_twice_is_refused() -> None:
    """Readers disagree about which one counts; equal values are no excuse, nor is an escape."""
    for text in (
        '{"sessionId": "a", "sessionId": "b"}',
        '{"sessionId": "a", "sessionId": "a"}',
        '{"sessionId": "a", "session\\u0049d": "a"}',
    ):
        assert refusal("list", text).path == "$.sessionId"
    assert refusal("list", '{"sessionId": {"a": 1, "a": 1}}').path == "$.a"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(constant: str) -> None:
    """Python's reader would take them."""
    assert "not JSON" in refusal("list", f'{{"sessionId": {constant}}}').reason


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        '{"sessionId": "a"} x',
        "{'sessionId': 'a'}",
        '{"sessionId": "a",}',
        "\ufeff" + json.dumps(LIST),
        ("\ufeff" + json.dumps(LIST)).encode(),
        json.dumps(LIST).encode("utf-16"),
        json.dumps(LIST).encode("utf-32-le"),
        b'{"sessionId": "\xff"}',
        b'{"sessionId": "\xed\xa0\x80"}',
        '{"sessionId": ' + "9" * 5000 + "}",
        "[" * 200_000,
        '{"sessionId": ' * 100_000 + "1" + "}" * 100_000,
    ],
    ids=range(14),
)
def test_what_is_not_utf8_json_is_refused(document: str | bytes) -> None:
    """Torn, trailing, other encodings, a byte order mark, numbers of thousands of digits, nesting without end."""
    assert refusal("list", document).path == "$"


@pytest.mark.parametrize("document", [[], ["s"], None, "null", '"s"', "1", "[]", "true", 7])
def test_what_is_no_object_is_refused(document: Any) -> None:
    """A request is an object."""
    assert refusal("list", document).path == "$"


def test_names_that_are_no_strings_are_refused() -> None:
    """Python mappings may have such."""
    assert "$" in refusal("list", LIST | {1: "x"}).path


def test_a_refusal_is_short_however_long_the_name() -> None:
    """It ends up in logs and in the failed registry."""
    assert len(str(refusal("list", LIST | {"x" * 1_000_000: 1}))) < 500
    twice = '{"' + "y" * 1_000_000 + '": 1, "' + "y" * 1_000_000 + '": 1}'
    assert len(str(refusal("list", twice))) < 500


@given(st.text())
def test_text_is_well_formed_exactly_when_it_has_utf8(text: str) -> None:
    """`check_text` refuses what cannot be stored or hashed, and nothing else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidRequest):
            check_text("$", text)
    else:
        check_text("$", text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_no_value_breaks_the_check(value: Any) -> None:
    """Only a string passes as an id; everything else is an `InvalidRequest`."""
    try:
        request = parse_request("list", {"sessionId": value})
    except InvalidRequest:
        return
    assert request == ListRequest(value)


@pytest.mark.parametrize("seconds", [0, 0.0, 1, 2.5, 1e300])
def test_a_timeout_is_a_number_of_seconds(seconds: float) -> None:
    """Zero means: look once."""
    assert check_timeout(seconds) == seconds


@pytest.mark.parametrize(
    "seconds", [-1, -0.001, float("nan"), float("inf"), True, False, None, "1", 10**400, 10**5000], ids=range(10)
)
def test_a_timeout_that_never_ends_or_is_none_is_refused(seconds: object) -> None:
    """Negative, not finite, not a number, too large for one."""
    with pytest.raises(InvalidRequest, match="timeout"):
        check_timeout(seconds)
