"""The original's media, recorded: each is read as the original reads it, and written byte for byte as it writes it."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feedback.errors import InvalidRequest, MediumInvalid
from feedback.partitions import PartitionId
from persistence.interchange.export import export
from persistence.interchange.media import Form, read_medium, write_whole
from persistence.interchange.per_record import PerRecordUnit
from persistence.interchange.rows import Found, Refusal, Row, quoted, record_of, row_of, storable
from persistence.interchange.single import document_of
from persistence.sidecar.store import PutItem, SidecarStore, StartSession
from tests.conformance.interchange_corpus import (
    SIDECARS,
    Case,
    Subject,
    Variant,
    cases,
    copied,
    deviations,
    dump,
    negatives,
    published,
    tree,
    variants,
)
from tests.conformance.log_corpus import FIXTURES, needs_fixtures
from tests.interchanging import NOON, counts, exported, fresh_store, take_in

pytestmark = needs_fixtures

DATABASE = SIDECARS / "sqlite/storage.sqlite"


@pytest.fixture
def store() -> Iterator[SidecarStore]:
    with fresh_store() as store:
        yield store


def expected(on: Subject, medium: str, theirs: str) -> str:
    """What our outcome has to be: the original's, unless a deviation says otherwise."""
    ours = [kind.ours for kind in deviations() if kind.covers(on, medium)]
    return ours[0] if ours and theirs != "ok" else theirs


def outcome_of(read: Callable[[], Iterator[Found]]) -> tuple[str, list[Row], list[Refusal]]:
    """Our word for what a medium is, its rows, and what is refused."""
    try:
        found = list(read())
    except MediumInvalid as error:
        return error.kind, [], []
    except InvalidRequest as error:
        return error.code, [], []
    refused = [one for one in found if isinstance(one, Refusal)]
    return "refused" if refused else "ok", [one for one in found if isinstance(one, Row)], refused


@pytest.mark.parametrize("variant", variants(), ids=str)
def test_each_variant_is_opened_as_by_the_original(variant: Variant) -> None:
    """The same rows in the same order, or the same refusal; of a record that is none, just that record's."""
    outcome, rows, refused = outcome_of(lambda: read_medium(Form.JSON, variant.path.parent))
    assert outcome == expected("open", f"variants/{variant.name}", variant.outcome)
    if outcome == "ok":
        assert {row.session_id: record_of(row) for row in rows} == variant.rows
        assert [row.session_id for row in rows] == variant.real["keys"]
    elif outcome == "refused":
        assert refused[0].path.startswith(f"$.tables.sessions[{quoted(variant.real['error']['detail']['key'])}]")


@pytest.mark.parametrize("variant", [one for one in variants() if "afterPutOnS2" in one.real], ids=str)
def test_each_variant_is_rewritten_as_by_the_original(variant: Variant, store: SidecarStore, tmp_path: Path) -> None:
    """After one more put, what is exported is what the original published, except for members of no meaning."""
    after = variant.real["afterPutOnS2"]
    put = row_of("s-2", after["tables"]["sessions"]["s-2"])
    take_in(store, read_medium(Form.JSON, variant.path))
    stored = store.stored_sessions(["s-2"])
    fence = store.acquire_fences([PartitionId(1, 0)], "test")[PartitionId(1, 0)]
    with store.transaction({PartitionId(1, 0): fence.epoch}) as transaction:
        start = [] if stored else [StartSession("s-2", put.identity)]
        transaction.apply([*start, PutItem("s-2", put.items[-1], 9)], (), {})
    ours = exported(store, tmp_path / "out.json").decode()
    theirs = json.dumps(after, ensure_ascii=False, indent=2) + "\n"
    if expected("rewrite", f"variants/{variant.name}", "differs") == "unknown members are gone":
        assert theirs != ours
        for row in after["tables"]["sessions"].values():
            row.update(record_of(row_of("", row)))
            row.pop("extra", None)
        theirs = json.dumps(after | {"global": None}, ensure_ascii=False, indent=2) + "\n"
    assert ours == theirs


@pytest.mark.parametrize("path", published(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_the_original_wrote_comes_back_byte_for_byte(path: Path, store: SidecarStore, tmp_path: Path) -> None:
    """export(import(x)) == x; a second import finds everything unchanged. What cannot be stored is named."""
    theirs = path.read_bytes()
    rows = [one for one in read_medium(Form.JSON, path) if isinstance(one, Row)]
    medium = f"transcript/{path.stem}" if path.parent.name == "transcript" else f"sequences/{path.parent.name}"
    report = take_in(store, read_medium(Form.JSON, path))
    match expected("round trip", medium, "differs"):
        case "differs":
            assert report.refused == 0
        case "lone surrogates are refused":
            assert b"".join(document_of(rows)) == theirs, "the codec itself loses nothing"
            theirs = b"".join(document_of(kept for row in rows if (kept := storable(row, "")[0]) is not None))
            assert report.refused == sum(len(storable(row, "")[1]) for row in rows) > 0
        case "invalid records are refused":
            theirs = b"".join(document_of(rows))
            assert report.refused == 1
    assert exported(store, tmp_path / "out.json") == theirs
    again = take_in(store, read_medium(Form.JSON, path))
    assert counts(again) == (0, 0, report.added, 0, report.refused)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_each_per_record_tree_is_opened_as_the_layout_says(case: Case, tmp_path: Path) -> None:
    root = case.copy(tmp_path)
    before = tree(root)
    descriptor = case.descriptor
    unit = PerRecordUnit(root, version=descriptor["version"], compatible=descriptor["compatibleVersions"])
    outcome, rows, refused = outcome_of(unit.read)
    backed_up = descriptor["invalidRecords"] == "backup-and-skip"
    theirs = "refused" if backed_up and refused else case.expected["open"]
    assert outcome == expected("open", f"per-record/{case.name}", theirs)
    if case.expected["open"] == "ok":
        assert [row.session_id for row in rows] == case.expected["presentKeys"]
    assert tree(root) == before, "reading changes nothing"


@pytest.mark.parametrize("case", [one for one in cases() if one.after], ids=str)
def test_a_tree_that_is_written_to_is_opened_as_the_original_opens_it(case: Case, tmp_path: Path) -> None:
    """What was imported is there to the letter when it is exported over it: records of the single layout as documents,
    invalid ones set aside."""
    root, descriptor = case.copy(tmp_path), case.descriptor
    unit = PerRecordUnit(root, version=descriptor["version"], compatible=descriptor["compatibleVersions"])
    rows = [one for one in unit.read() if isinstance(one, Row)]
    before = tree(root)
    assert list(unit.write(rows, overwrite=True, now=NOON, check=True))
    assert tree(root) == before, "a check writes nothing"
    list(unit.write(rows, overwrite=True, now=NOON, check=False))
    assert tree(root) == tree(SIDECARS / "per-record" / case.name / "after")


def test_a_database_comes_back_as_it_was(store: SidecarStore, tmp_path: Path) -> None:
    """Rows, their order, the schema's text and the pragmas are the original's."""
    source = copied(DATABASE, tmp_path / "theirs.sqlite")
    target = tmp_path / "ours.sqlite"
    take_in(store, read_medium(Form.SQLITE, source))
    export(store, Form.SQLITE, target, overwrite=False, check=False, now=NOON)
    assert dump(target) == dump(source)
    with closing(sqlite3.connect(source)) as connection:
        recorded = json.loads((SIDECARS / "sqlite/dump.json").read_text(encoding="utf-8"))["rows"]
        assert recorded == [
            {"key": key, "value": value}
            for key, value in connection.execute("SELECT key, value FROM u_message_feedback_sessions ORDER BY rowid")
        ]


@pytest.mark.parametrize("negative", negatives(), ids=lambda negative: negative["name"])
def test_each_spoilt_database_is_opened_as_by_the_original(negative: dict[str, Any], tmp_path: Path) -> None:
    path = copied(DATABASE, tmp_path / "spoilt.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(negative["sql"])
    before = path.read_bytes()
    outcome, rows, _ = outcome_of(lambda: read_medium(Form.SQLITE, path))
    real = negative["real"]
    theirs = "ok" if real["open"] == "ok" else real["error"]["code"]
    assert outcome == expected("open", f"sqlite/{negative['name']}", theirs)
    if outcome == "ok":
        assert sorted(row.session_id for row in rows) == sorted(real["keys"])
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["spoilt.sqlite"]


def test_nothing_was_ever_written_is_an_empty_document(tmp_path: Path) -> None:
    """Of a sequence that left no file there is nothing to import, and nothing stored is exported as an empty unit."""
    with pytest.raises(InvalidRequest, match="No such file"):
        list(read_medium(Form.JSON, SIDECARS / "sequences/never-written"))
    write_whole(Form.JSON, tmp_path / "out.json", (), overwrite=False, check=False)
    assert list(read_medium(Form.JSON, tmp_path / "out.json")) == []
    document = json.loads((tmp_path / "out.json").read_text())
    assert document == {"unit": {"name": "message_feedback", "version": 0}, "global": None, "tables": {"sessions": {}}}


def test_every_deviation_is_one() -> None:
    """Nothing is listed that we answer as the original does, and no fixture is forgotten."""
    different = {
        "open": [
            *(f"variants/{one.name}" for one in variants() if one.outcome in ("invalid-record", "EISDIR")),
            *(f"per-record/{one.name}" for one in cases() if one.expected["open"] != "ok"),
            *(f"sqlite/{one['name']}" for one in negatives() if one["name"] in ("bad-row", "bad-json")),
        ],
        "rewrite": [f"variants/{name}" for name in ("row-extra", "session-extra", "item-extra", "global-value")],
        "round trip": [
            "sequences/unicode",
            "sequences/direct-invalid-rating",
            *(f"transcript/{path.stem}" for path in published() if path.parent.name == "transcript"),
        ],
    }
    for kind in deviations():
        for pattern in kind.media:
            assert any(kind.covers(kind.on, medium) for medium in different[kind.on]), pattern
    assert {path.name for path in (SIDECARS / "variants").iterdir()} == {one.path.parent.name for one in variants()}
    assert {path.name for path in (SIDECARS / "per-record").iterdir() if path.is_dir()} | {"empty"} == {
        one.name for one in cases()
    }
    assert len(published()) == len(list(FIXTURES.glob("transcript/sidecar-after-*.json"))) + 7
