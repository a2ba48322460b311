"""Reading and writing the original's JSON: the same values as JavaScript sees, the same bytes as it writes."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedback.errors import MediumInvalid
from feedback.model import Item, SessionIdentity
from persistence.interchange import single, text
from persistence.interchange.rows import (
    MAX_TEXT_BYTES,
    RecordInvalid,
    Row,
    check_unique,
    key_order,
    record_of,
    row_of,
    storable,
)
from persistence.interchange.single import document_of, read_single
from persistence.interchange.text import JsonReader, TextInvalid, decode, encoded, pretty
from persistence.session_log.jsontext import MAX_SAFE, Json
from tests.interchanging import LIFE, item, row

NOWHERE = Path("message_feedback.json")

# Any text, lone surrogates and NUL included; more often what has a meaning in JSON or JavaScript.
texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["", "0", "7", "10", "4294967294", "4294967295", "01", "__proto__", "\ud800", '\0\u2028\x7f"\\']),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_SAFE, MAX_SAFE) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
times = st.integers(0, MAX_SAFE)
uuids = st.uuids(version=4).map(str) | st.uuids(version=4).map(lambda uuid: str(uuid).upper())


@st.composite
def items(draw: st.DrawFn, message_id: str) -> Item:
    created_at, updated_at = sorted((draw(times), draw(times)))
    return Item(
        message_id=message_id,
        rating=draw(st.sampled_from(["positive", "negative"])),
        note=draw(st.none() | texts.map(lambda note: note + "!")),
        version=draw(uuids),
        created_at=created_at,
        updated_at=updated_at,
    )


@st.composite
def rows(draw: st.DrawFn, session_id: str) -> Row:
    ids = draw(st.lists(texts.filter(bool), unique=True, max_size=4))
    identity = SessionIdentity(created_at=draw(times), cwd=draw(st.none() | texts))
    return Row(session_id, identity, tuple(draw(items(message_id)) for message_id in ids))


documents = st.lists(texts, unique=True, max_size=6).flatmap(lambda ids: st.tuples(*map(rows, key_order(ids))))


def read(document: bytes) -> list[object]:
    return list(read_single(io.BytesIO(document), NOWHERE))


def unit(sessions: str, before: str = "", after: str = "") -> bytes:
    """A document with these members of `sessions`, and others before and after `tables`."""
    header = '"unit":{"name":"message_feedback","version":0},'
    return f'{{{header}{before}"tables":{{"sessions":{{{sessions}}}}}{after}}}'.encode()


EMPTY = '{"session":{"createdAt":1},"items":[]}'


class TestSingleDocument:
    @given(documents)
    @settings(max_examples=30)
    def test_what_is_written_is_read_again(self, document: tuple[Row, ...]) -> None:
        written = b"".join(document_of(document))
        assert read(written) == list(document)

    @given(documents)
    @settings(max_examples=30)
    def test_the_bytes_are_those_of_json_stringify(self, document: tuple[Row, ...]) -> None:
        """As Python's own writer gives them, which differs in lone surrogates only."""
        sessions = {one.session_id: record_of(one) for one in document}
        whole = {"unit": {"name": "message_feedback", "version": 0}, "global": None, "tables": {"sessions": sessions}}
        theirs = json.dumps(whole, ensure_ascii=False, indent=2) + "\n"
        assert b"".join(document_of(document)) == theirs.encode(errors="backslashreplace")

    def test_cut_anywhere_nothing_is_given_out(self) -> None:
        """The end is looked at before the first row is given out."""
        document = b"".join(document_of([row("a", item("m", note="é")), row("b")])).rstrip()
        for end in range(len(document)):
            with pytest.raises(MediumInvalid, match="malformed-medium"):
                read(document[:end])

    @pytest.mark.parametrize(
        ("document", "keys"),
        [
            (unit(f'"a":{EMPTY},"b":7,"c":{EMPTY},"a":7,"b":{EMPTY}'), ["c", None, "b"]),
            (unit(f'"b":{EMPTY}', before=f'"tables":{{"sessions":{{"a":{EMPTY}}}}},'), ["b"]),
            (unit(f'"a":{EMPTY}', after=',"tables":{"other":{}}'), []),
            (unit(f'"a":{EMPTY}', after=',"tables":[7]'), []),
            (unit(f'"a":{EMPTY}}},"sessions":{{"b":{EMPTY}'), ["b"]),
            (unit(f'"a":{EMPTY}}},"sessions":null,"sessions":{{"b":{EMPTY}'), ["b"]),
            (unit(f'"a":{EMPTY}', before='"unit":7,"unit":{"name":"message_feedback","version":0},'), ["a"]),
        ],
    )
    def test_of_what_is_there_twice_the_last_one_counts(self, document: bytes, keys: list[str | None]) -> None:
        """None stands for a record that is refused."""
        assert [one.session_id if isinstance(one, Row) else None for one in read(document)] == keys

    @given(st.lists(st.sampled_from("abcdefgh"), max_size=12))
    def test_a_key_that_is_there_twice_counts_once(self, keys: list[str]) -> None:
        """With the value that it has last, however crowded the memory of keys is."""
        members = ",".join(f'"{key}":{{"session":{{"createdAt":{at}}},"items":[]}}' for at, key in enumerate(keys))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(single, "_MOST_BITS", 8)
            found = read(unit(members))
        last = {key: at for at, key in enumerate(keys)}
        assert {one.session_id: one.identity.created_at for one in found if isinstance(one, Row)} == last
        assert len(found) == len(last)


class TestReader:
    @given(json_values, st.integers(1, 5))
    @example(7, 1)
    def test_values_are_the_same_however_the_file_is_cut(self, value: Json, window: int) -> None:
        """A window that ends inside of a number, a string, an escape or a character changes nothing."""
        document = encoded(json.dumps({"a": value, "b": [value]}, ensure_ascii=False))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text, "_WINDOW", window)
            reader = JsonReader(io.BytesIO(document))
            found = {name: reader.value() for name in reader.members()}
            reader.end()
        assert found == decode(document) == {"a": value, "b": [value]}

    @pytest.mark.parametrize(
        "document",
        ["", " ", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{,}", '{"a" 1}', "{1:1}", '{"a":1} x', "[]"],
    )
    def test_what_is_no_object_is_refused(self, document: str) -> None:
        reader = JsonReader(io.BytesIO(document.encode()))
        with pytest.raises(TextInvalid):
            [reader.value() for _ in reader.members()]
            reader.end()

    @pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "'a'", '"\t"', "tru"])
    def test_what_javascript_does_not_parse_is_refused(self, literal: str) -> None:
        with pytest.raises(TextInvalid):
            decode(literal.encode())

    def test_nesting_past_all_reason_is_refused(self) -> None:
        """Neither the stack nor the program ends over it."""
        deep = b"[" * 100_000 + b"]" * 100_000
        with pytest.raises(TextInvalid, match="nested"):
            decode(deep)
        with pytest.raises(MediumInvalid, match="nested"):
            read(unit(f'"a":{EMPTY}', after=f',"x":{deep.decode()}'))

    def test_a_value_of_any_size_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text, "_WINDOW", 16)
        monkeypatch.setattr(text, "MAX_VALUE_CHARS", 100)
        assert read(unit(f'"a":{EMPTY}', after=f',"x":"{"x" * 90}"'))
        with pytest.raises(MediumInvalid, match="over 100 characters"):
            read(unit(f'"a":{EMPTY}', after=f',"x":"{"x" * 1000}"'))

    @pytest.mark.parametrize(
        ("number", "ok"),
        [("0", True), ("-0", True), ("5.0", True), ("1e3", True), (str(MAX_SAFE), True)]
        + [(bad, False) for bad in (str(MAX_SAFE + 1), "-1", "0.5", "1e999", "9" * 5000, "true", '"1"', "null")],
    )
    def test_a_time_is_a_whole_number_as_javascript_has_it(self, number: str, ok: bool) -> None:
        found = read(unit(f'"a":{{"session":{{"createdAt":{number}}},"items":[]}}'))
        assert [isinstance(one, Row) for one in found] == [ok]
        if ok:
            assert isinstance(found[0], Row)
            assert record_of(found[0])["session"] == {"createdAt": int(float(number))}


def test_keys_are_ordered_as_javascript_orders_them() -> None:
    """As Node.js 20 printed them: array indices ascending, all else as it came."""
    given_keys = ["b", "4294967295", "4294967294", "9007199254740993", "10", "01", "-1", "1.0", "2", "__proto__", "٣"]
    expected = ["2", "10", "4294967294", "b", "4294967295", "9007199254740993", "01", "-1", "1.0", "__proto__", "٣"]
    assert key_order(given_keys) == expected


def test_empty_containers_and_escapes_are_written_as_javascript_does() -> None:
    """As Node.js 20 printed them."""
    value = {"a": {}, "b": [], "c": '\x7f\u2028\U00010000\ud800x\x01\b\f\n\r\t"\\/é'}
    written = encoded(pretty(value))
    text_of_c = b'"\x7f\xe2\x80\xa8\xf0\x90\x80\x80\\ud800x\\u0001\\b\\f\\n\\r\\t\\"\\\\/\xc3\xa9"'
    assert written == b'{\n  "a": {},\n  "b": [],\n  "c": ' + text_of_c + b"\n}"


class TestRows:
    def test_two_items_of_one_version_are_no_record(self) -> None:
        with pytest.raises(RecordInvalid, match=r"items\[1\].version"):
            check_unique(row("s", item("a", version=1), item("b", version=1)))

    def test_the_maximum_uuid_counts_in_lower_case_only(self) -> None:
        """The one version whose letters matter."""
        record = record_of(row("s", item("a")))
        for version, ok in (("f" * 8, True), ("F" * 8, False)):
            last = {**record["items"][0], "version": f"{version}-ffff-ffff-ffff-ffffffffffff"}  # type: ignore[index]
            if ok:
                assert row_of("s", {**record, "items": [last]}).items[0].version.startswith("ffffffff")  # type: ignore[dict-item]
            else:
                with pytest.raises(RecordInvalid, match="UUID"):
                    row_of("s", {**record, "items": [last]})  # type: ignore[dict-item]

    def test_what_the_store_cannot_hold_is_left_out(self) -> None:
        """An item with a lone surrogate, or larger than any command; its neighbours stay. A bad id takes all along."""
        whole = row("s", item("a"), item("\ud800"), item("c", note="\udfff"), item("d", note="x" * MAX_TEXT_BYTES))
        kept, refused = storable(whole, "sessions")
        assert kept == row("s", item("a"))
        assert [one.path for one in refused] == [
            "sessions.items[1].messageId",
            "sessions.items[2].note",
            "sessions.items[3]",
        ]
        assert storable(row("\ud800", item("a")), "x")[0] is None
        assert storable(row("s", item("a"), life=SessionIdentity(created_at=1, cwd="\ud800")), "x")[0] is None
        assert storable(row("s", item("\ud800")), "x")[0] is None, "no empty row for items that were refused"
        assert storable(row("s"), "x") == (row("s"), [])
        fits = item("d", note="x" * (MAX_TEXT_BYTES - len("s") - len(LIFE.cwd or "") - len("d")))
        assert storable(row("s", fits), "x") == (row("s", fits), [])
