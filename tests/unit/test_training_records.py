"""From entries and items to records: what stands before an answer, what makes two answers a pair, what is left out."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from app.training.conversation import Call, Turn
from app.training.export import Plan
from app.training.filters import Filters, moment_of
from app.training.parquet import weight_of
from app.training.records import AnswerRecord, PairRecord, Session, answers, pairs
from app.training.source import place_of
from feedback.model import Item, Rating
from persistence.transcripts import (
    Attachment,
    Entry,
    Message,
    Opaque,
    Reasoning,
    Request,
    Text,
    ToolCall,
    ToolResult,
)
from persistence.transcripts.entries import Role
from persistence.transcripts.parts import Part, text_of

PAGE = Path(__file__).parents[2] / "docs/training-export.md"
SESSION = Session(session_id="s", created_at=1, cwd="/w")


def said(
    seq: int, role: Role, *parts: Part | str, replaces: tuple[int, int] | None = None, model: str | None = None
) -> Message:
    """A message `m<seq>`; an assistant's is eligible as the barrier would have it."""
    content = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    assistant = role == "assistant"
    return Message(
        seq=seq,
        time=1000 + seq,
        role=role,
        message_id=f"m{seq}",
        text=text_of(content),
        parts=content,
        provider="prov" if assistant else None,
        model=(model or "mod") if assistant else None,
        origin="append" if replaces is None else "replacement",
        replaces=replaces,
        eligible=assistant and bool(parts) and replaces is None,
    )


def rated(message_id: str, rating: Rating = "positive", at: int = 5) -> Item:
    return Item(message_id=message_id, rating=rating, version=f"v-{message_id}", created_at=at, updated_at=at + 1)


def records(entries: Sequence[Entry], *items: Item, filters: Filters | None = None) -> list[AnswerRecord]:
    by_id = {item.message_id: item for item in items}
    return list(answers(SESSION, entries, by_id, {"v-m1": "ada"}, filters or Filters()))


def turn(role: str, text: str, **more: object) -> Turn:
    usual = {"reasoning": None, "tool_calls": (), "tool_call_id": None, "is_error": None, "attachments": 0}
    return Turn(role=role, text=text, **(usual | more))  # type: ignore[arg-type]  # members of their types


def test_an_answer_stands_behind_what_the_model_had_before_it() -> None:
    """System prompt, thinking, calls, results, attachments; in the order of the surface, and nothing behind it."""
    entries: list[Entry] = [
        Request(seq=0, system="Be brief."),
        said(1, "user", "Look: ", Attachment("image"), "well?"),
        Opaque(seq=2, kind="step/start"),
        said(3, "assistant", Reasoning("hm"), "I call.", ToolCall("c", "sh", '{"a":1}')),
        said(4, "tool", ToolResult("c", is_error=True, parts=(Text("no"), Attachment("file")))),
        said(5, "assistant"),
        said(6, "assistant", "Done."),
        said(7, "user", "Thanks"),
    ]
    (record,) = records(entries, rated("m6"))
    assert record.prompt == (
        turn("system", "Be brief."),
        turn("user", "Look: well?", attachments=1),
        turn("assistant", "I call.", reasoning="hm", tool_calls=(Call("c", "sh", '{"a":1}'),)),
        turn("tool", "no", tool_call_id="c", is_error=True, attachments=1),
    )
    answer = record.answer
    assert (answer.message_id, answer.seq, answer.answered_at, answer.provider, answer.model, answer.message) == (
        "m6",
        6,
        1006,
        "prov",
        "mod",
        turn("assistant", "Done."),
    )
    assert (answer.rating, answer.note, answer.actor, answer.version, answer.rated_at, answer.updated_at) == (
        "positive",
        None,
        None,
        "v-m6",
        5,
        6,
    )


def test_what_was_replaced_before_an_answer_was_not_before_the_model() -> None:
    """A summary stands for what it replaced; an answer that was replaced later had its own prompt."""
    entries = [
        said(0, "user", "one"),
        said(1, "assistant", "first"),
        said(2, "user", "two"),
        said(3, "user", "summary", replaces=(0, 1)),
        said(4, "user", "stray", replaces=(0, 1)),
        said(5, "assistant", "second"),
        said(6, "assistant", "rewritten", replaces=(5, 5)),
        said(7, "assistant", "third"),
    ]
    first, second, third = records(entries, rated("m7"), rated("m1"), rated("m5"), rated("m6"))
    assert [record.answer.message_id for record in (first, second, third)] == ["m1", "m5", "m7"]
    assert [t.text for t in first.prompt] == ["one"]
    assert [t.text for t in second.prompt] == ["summary", "two"]
    assert [t.text for t in third.prompt] == ["summary", "two", "rewritten"]
    assert first.answer.actor == "ada"


def test_a_pair_is_two_answers_to_the_same_conversation() -> None:
    """A prompt that replaced the exchange and says the same is the same; one more message before, or another word, is
    another prompt; every positive goes with every negative."""
    entries = [
        said(0, "user", "q"),
        said(1, "assistant", "good"),
        said(2, "user", "q", replaces=(0, 1)),
        said(3, "assistant", "bad"),
        said(4, "user", "q", replaces=(2, 3)),
        said(5, "assistant", "worse"),
        said(6, "user", "Q", replaces=(4, 5)),
        said(7, "assistant", "bad as well"),
        said(8, "user", "q"),
        said(9, "assistant", "bad, too"),
    ]
    items = [rated("m1"), *(rated(f"m{seq}", "negative") for seq in (3, 5, 7, 9))]
    found = list(pairs(records(entries, *items)))
    assert [(pair.chosen.message.text, pair.rejected.message.text) for pair in found] == [
        ("good", "bad"),
        ("good", "worse"),
    ]
    assert {tuple(t.text for t in pair.prompt) for pair in found} == {("q",)}
    assert list(pairs(records(entries, *items[1:]))) == []


def test_filters_leave_out_by_time_rating_project_and_model() -> None:
    """Since counts the instant itself, until does not; a model may be named with its provider."""
    item = rated("m", at=99)  # changed at 100
    assert Filters(since=100, until=101, rating="positive").take_item(item)
    assert not Filters(since=101).take_item(item)
    assert not Filters(until=100).take_item(item)
    assert not Filters(rating="negative").take_item(item)
    assert Filters(projects=("/w",)).take_project("/w")
    assert not Filters(projects=("/w",)).take_project("/w/")
    assert Filters(projects=("",)).take_project(None)
    assert not Filters(projects=("/w",)).take_project(None)
    entries = [said(0, "user", "q"), said(1, "assistant", "a", model="x"), said(2, "assistant", "b", model="y")]
    for models, expected in ((("x",), ["m1"]), (("prov/y",), ["m2"]), (("z",), []), ((), ["m1", "m2"])):
        found = records(entries, rated("m1"), rated("m2"), filters=Filters(models=models))
        assert [record.answer.message_id for record in found] == expected


def test_of_messages_with_one_id_the_first_that_counts_is_the_rated_one() -> None:
    """A replacement with the id of the original is no answer of its own."""
    entries = [said(1, "assistant", "told"), said(2, "assistant", "again")]
    entries[1] = Message(**{f: getattr(entries[1], f) for f in entries[1].__struct_fields__} | {"message_id": "m1"})
    (record,) = records(entries, rated("m1"))
    assert record.answer.message.text == "told"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("20231114", 1_699_920_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_times_are_taken_as_people_write_them(text: str, milliseconds: int) -> None:
    """Milliseconds, dates, and times with or without a zone (UTC then)."""
    assert moment_of(text) == milliseconds


@pytest.mark.parametrize("text", ["", "2026", "yesterday", "-5", "1969-01-01", "99999999999999999999", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"."):
        moment_of(text)


def test_the_page_shows_the_schema_of_what_is_written() -> None:
    """docs/training-export.md, to the letter."""
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- schema -->\n```json\n")[2].partition("\n```")[0]
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert json.loads(shown) == dialect | msgspec.json.schema(AnswerRecord | PairRecord)


def test_an_export_is_recognised_by_its_store_whoever_reads_it() -> None:
    """Nothing that is derived from a credential reaches the checkpoint, and a changed one does not refuse to go on."""

    def digest(url: str) -> str:
        return Plan(format="jsonl", pairs=False, filters=Filters(), store=place_of(url), sessions="r").digest

    urls = ("ada:old@db:5432/feedback", "bob:new@db:5432/feedback", "db:5432/feedback?password=other&user=x")
    assert len({digest(f"postgresql://{url}") for url in urls}) == 1
    assert place_of("postgresql://ada:old@db:5432/feedback") == "postgresql://db:5432/feedback"
    assert digest("postgresql://db:5432/other") != digest("postgresql://db:5432/feedback")
    assert digest("sqlite:////a@b/c") != digest("sqlite:////b/c")


def test_what_a_row_group_may_hold_counts_all_text() -> None:
    """Of a conversation full of tools, most is the arguments: memory is bounded by them as by what was said."""
    long = "x" * 10_000
    plain, call, thinking = Text(""), ToolCall("c", "write", long), Reasoning(long)
    entries = [said(0, "user", "Why?"), said(1, "assistant", call), said(2, "assistant", thinking, plain)]
    (record,) = answers(SESSION, [*entries, said(3, "assistant", "So.")], {"m3": rated("m3")}, {}, Filters())
    assert 20_000 < weight_of(record) < 21_000
