"""What an import decides: newer feedback is never overwritten, and nothing is imported twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from feedback.events import FeedbackPut, decode_event
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.interchange.merge import Numbering, Part, Plan, doubtful, import_id, parts_of, plan, written
from persistence.sidecar.store import PutItem, SessionFeedback, StartSession
from tests.interchanging import LIFE, NEXT_LIFE, item, row

OLDER = SessionIdentity(created_at=LIFE.created_at - 1, cwd="/w")
ELSEWHERE = SessionIdentity(created_at=LIFE.created_at, cwd="/v")
PARTITION = PartitionId(3, 5)


def part(*items: Item, life: SessionIdentity = LIFE) -> Part:
    return Part("s", life, items, max((one.updated_at for one in items), default=-1))


def stored(*items: Item, life: SessionIdentity = LIFE) -> SessionFeedback:
    return SessionFeedback("s", life, 7, items)


def decided(new: Part, old: SessionFeedback | None, gone: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """Added, updated, unchanged, kept, and whether the row begins."""
    made = plan(new, old, gone)
    assert made.added + made.updated == len(made.puts)
    assert made.added + made.updated + made.unchanged + made.kept == len(new.items)
    return made.added, made.updated, made.unchanged, made.kept, made.starts


class TestOneLife:
    @pytest.mark.parametrize(
        ("old", "fate"),
        [
            ([], (1, 0, 0, 0)),
            ([item("m", at=49)], (0, 1, 0, 0)),
            ([item("m", at=50)], (0, 0, 1, 0)),
            ([item("m", at=51)], (0, 0, 0, 1)),
            ([item("m", at=50, version=2)], (0, 0, 0, 1)),
            ([item("m", at=50, note="here")], (0, 0, 0, 1)),
            ([item("n", at=99)], (1, 0, 0, 0)),
        ],
        ids=["absent", "older", "the same", "newer", "same time, other version", "same time, other note", "another"],
    )
    def test_the_later_update_counts_and_what_is_stored_at_a_tie(self, old: list[Item], fate: tuple[int, ...]) -> None:
        assert decided(part(item("m", at=50)), stored(*old)) == (*fate, False)

    @pytest.mark.parametrize("old", [[], [item("m", at=1)]], ids=["deleted", "clocks differ"])
    def test_what_was_imported_once_does_not_come_back(self, old: list[Item]) -> None:
        """Deleted since, or rated anew by a slow clock: both are later than the import."""
        new = part(item("m", at=50))
        assert doubtful(new, stored(*old)) == list(new.items)
        assert decided(new, stored(*old), frozenset({"m"})) == (0, 0, 0, 1, False)

    def test_a_new_session_is_taken_as_it_is(self) -> None:
        """In the order of its items, also without any."""
        assert plan(part(item("b"), item("a", version=2)), None, ()).puts == (item("b"), item("a", version=2))
        assert decided(part(), None) == (0, 0, 0, 0, True)
        assert plan(part(), stored(), ()).is_idle


class TestLives:
    @pytest.mark.parametrize(
        ("new", "old", "replaced"),
        [
            (part(item("m", at=50), life=NEXT_LIFE), stored(item("m", at=50)), True),
            (part(item("m", at=50), life=NEXT_LIFE), stored(), True),
            (part(item("m", at=50), life=NEXT_LIFE), stored(item("n", at=51)), False),
            (part(life=NEXT_LIFE), stored(), False),
            (part(item("m", at=50), life=OLDER), stored(), False),
            (part(item("m", at=50), life=ELSEWHERE), stored(), False),
        ],
        ids=["later", "over nothing", "older feedback", "without feedback", "earlier", "same time, other directory"],
    )
    def test_a_later_life_replaces_an_earlier_one(self, new: Part, old: SessionFeedback, replaced: bool) -> None:
        count = len(new.items)
        assert decided(new, old) == ((count, 0, 0, 0, True) if replaced else (0, 0, 0, count, False))

    def test_a_life_that_was_here_does_not_come_back(self) -> None:
        """Whoever put feedback on another one since knew better."""
        new = part(item("a"), item("b", version=2), life=NEXT_LIFE)
        assert decided(new, stored(), frozenset({"a"})) == (0, 0, 0, 2, False)


class TestParts:
    @given(st.lists(st.integers(0, 40), max_size=9), st.integers(1, 4))
    def test_a_row_is_taken_apart_in_order(self, notes: list[int], most: int) -> None:
        """Each part is small, or one item; all know the newest item of the row."""
        whole = row("s", *(item(f"m{at}", at=at, note="x" * size) for at, size in enumerate(notes)))
        parts = list(parts_of(whole, most, 600))
        assert [one for a_part in parts for one in a_part.items] == list(whole.items)
        assert {a_part.newest for a_part in parts} == {len(notes) - 1}
        assert all(len(a_part.items) <= most and (a_part.size <= 600 or len(a_part.items) == 1) for a_part in parts)
        assert len(parts) > 0, "a row without items is a part without items"


class TestWriting:
    def test_changes_and_records_are_numbered_densely(self) -> None:
        """Each item is an event of its partition and a revision of its Session, to the letter as it was."""
        plans = [
            Plan(Part("new", LIFE, (), -1), starts=True, puts=(item("a", note="é"), item("b", version=2))),
            Plan(Part("old", LIFE, (), -1), starts=False, puts=(item("c"),)),
            Plan(Part("new", LIFE, (), -1), starts=True, puts=(item("d", version=3),)),
        ]
        numbering = Numbering(
            partition_of=lambda _: PARTITION,
            epochs={PARTITION: 4},
            sequences={PARTITION: 10},
            revisions={"new": 0, "old": 7},
            now_ms=99,
            expires_at=199,
            actor="ada",
        )
        changes, records = written(plans, numbering)
        assert changes == [
            StartSession("new", LIFE),
            PutItem("new", item("a", note="é"), 1),
            PutItem("new", item("b", version=2), 2),
            PutItem("old", item("c"), 8),
            StartSession("new", LIFE),
            PutItem("new", item("d", version=3), 3),
        ]
        assert [record.sequence for record in records] == [11, 12, 13, 14]
        assert len({record.command_id for record in records}) == 4
        assert {(record.applied_at, record.expires_at, record.partition) for record in records} == {
            (99, 199, PARTITION)
        }
        assert decode_event(records[2].event) == FeedbackPut(
            event_id="3-5-13",
            command_id=import_id("old", LIFE, item("c")),
            session_id="old",
            session=LIFE,
            revision=8,
            message_id="c",
            actor="ada",
            occurred_at=99,
            partition=5,
            epoch=4,
            item=item("c"),
        )

    def test_an_items_id_is_the_same_for_ever(self) -> None:
        """A store that was imported into by an older program recognises it; anything that differs makes another."""
        same = import_id("s", LIFE, item("m", note="n"))
        assert same == "e13d92c7-84f7-59c0-8c13-885d11fe7ba0"
        others = [
            import_id("t", LIFE, item("m", note="n")),
            import_id("s", NEXT_LIFE, item("m", note="n")),
            *(import_id("s", LIFE, replace(item("m", note="n"), **{name: value})) for name, value in DIFFERENT.items()),
        ]
        assert len({same, *others}) == 9


DIFFERENT = {
    "message_id": "k",
    "rating": "negative",
    "note": None,
    "version": item("m", version=2).version,
    "created_at": 1,
    "updated_at": 2,
}
