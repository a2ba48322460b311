"""Importing into a store and exporting from it: nothing is lost or done twice, nothing newer is overwritten."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback.errors import QueueUnavailable
from feedback.events import FeedbackPut, decode_event
from feedback.model import Item
from persistence.interchange.export import export
from persistence.interchange.media import Form, read_medium
from persistence.interchange.rows import Found, Row, is_index, key_order
from persistence.interchange.single import document_of
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import DeleteItem, PartitionsFenced, StoredSession
from tests.conformance.interchange_corpus import dump
from tests.interchanging import (
    LIFE,
    NEXT_LIFE,
    NOON,
    NOW_MS,
    PARTITIONS,
    SETTINGS,
    contents,
    counts,
    exported,
    fresh_store,
    item,
    outcomes,
    rate,
    row,
    set_up,
    take_in,
)
from worker import importing
from worker.core.batching import CLOCK_SLACK_MS
from worker.importing import Importer
from worker.turns import Turn, Turns

ROWS: list[Found] = [
    row("b", item("m2", note="two"), item("m1", version=2)),
    row("10"),
    row("ä/\U0001f680", item("m1", note="é\0\u2028"), life=msgspec.structs.replace(LIFE, cwd=None)),
    row("", item("m1")),
    row("9", item("m1", at=1_800_000_000_001), life=NEXT_LIFE),
]


@pytest.fixture(autouse=True)
def ready(request: pytest.FixtureRequest) -> None:
    """The store of an engine, when a test asks for one, was set up."""
    if "store" in request.fixturenames:
        set_up(request.getfixturevalue("store"))


class TestEveryEngine:
    def test_what_was_imported_is_there_to_the_letter_and_was_said(self, store: SidecarStore, tmp_path: Path) -> None:
        """Rows in their order, one event an item, dense in its partition and its Session; again is unchanged; back
        out again it is what went in."""
        assert counts(take_in(store, ROWS)) == (5, 0, 0, 0, 0)
        assert [(one and Row(one.session_id, one.identity, one.items)) for one in contents(store)] == ROWS
        said = outcomes(store)
        for partition, of_one in said.items():
            assert [sequence for sequence, _ in of_one] == list(range(1, len(of_one) + 1))
            assert store.heads([partition])[partition] == len(of_one)
        events = [decode_event(event) for of_one in said.values() for _, event in of_one]
        puts = {(one.session_id, one.message_id): one for one in events if isinstance(one, FeedbackPut)}
        assert len(puts) == len(events) == 5
        assert puts["b", "m1"].item == item("m1", version=2)
        assert [puts["b", message_id].revision for message_id in ("m2", "m1")] == [1, 2]
        assert (puts["b", "m2"].actor, puts["b", "m2"].session, puts["b", "m2"].epoch) == ("ada", LIFE, 1)
        assert store.stored_sessions(["b", "10"]) == {"b": StoredSession(LIFE, 2), "10": StoredSession(LIFE, 0)}

        document = exported(store, tmp_path / "out.json")
        order = key_order(one.session_id for one in ROWS if isinstance(one, Row))
        assert [
            one.session_id for one in read_medium(Form.JSON, tmp_path / "out.json") if isinstance(one, Row)
        ] == order
        before = contents(store)
        assert counts(take_in(store, read_medium(Form.JSON, tmp_path / "out.json"))) == (0, 0, 5, 0, 0)
        assert (contents(store), outcomes(store)) == (before, said)
        assert exported(store, tmp_path / "out.json") == document

    def test_a_second_run_takes_nobodys_turn(self, store: SidecarStore) -> None:
        """The epochs are as the first run left them: no worker is fenced off for nothing."""
        take_in(store, ROWS)
        fences = store.acquire_fences(PARTITIONS, "a worker")
        assert counts(take_in(store, ROWS)) == (0, 0, 5, 0, 0)
        with store.transaction({partition: fence.epoch for partition, fence in fences.items()}) as transaction:
            transaction.apply((), (), {})

    def test_sessions_are_walked_in_the_order_of_their_first_storing(self, store: SidecarStore) -> None:
        """Whatever happens to them later; page by page."""
        take_in(store, [row(name, item("m")) for name in ("c", "a", "b")])
        take_in(store, [row("a", item("m", at=1_800_000_000_009))])
        first, second = store.session_ids(0, 2)
        assert (first[1], second[1]) == ("c", "a")
        assert [name for _, name in store.session_ids(second[0], 2)] == ["b"]
        assert store.session_ids(store.session_ids(second[0], 2)[-1][0], 2) == []


class TestNewerFeedback:
    def test_stays_and_what_was_deleted_here_stays_away(self) -> None:
        with fresh_store() as store:
            take_in(store, [row("s", item("a", at=50), item("b", at=50, version=2), item("c", at=50, version=3))])
            fences = store.acquire_fences(PARTITIONS, "a worker")
            with store.transaction({partition: fence.epoch for partition, fence in fences.items()}) as transaction:
                transaction.apply([DeleteItem("s", "c", 4)], (), {})
            found = [row("s", item("a", at=49, note="old"), item("b", at=51, note="new"), item("c", at=50, version=3))]
            assert counts(take_in(store, found, check=True)) == (0, 1, 0, 2, 0)
            assert counts(take_in(store, found)) == (0, 1, 0, 2, 0)
            (stored,) = contents(store)
            assert stored is not None
            assert stored.items == (item("a", at=50), item("b", at=51, note="new"))
            assert stored.revision == 5

    def test_what_a_user_deleted_stays_away_unless_it_was_updated_after_that(self, store: SidecarStore) -> None:
        """Whether it came here by a command or by an import, and whatever version comes in."""
        take_in(store, [row("s", item("imported", at=50))])
        rate(store, "s", item("here", at=50), at=50)
        rate(store, "s", "here", at=60)
        rate(store, "s", "imported", at=60)
        for at, fate in ((50, (0, 2)), (60, (0, 2)), (61, (2, 0))):
            medium = [row("s", item("here", at=at, version=at), item("imported", at=at, version=at))]
            report = take_in(store, medium, check=True)
            assert (report.added, report.kept) == fate
            assert take_in(store, medium) == report
        assert counts(take_in(store, [row("s", item("here", at=62, version=62))])) == (0, 1, 0, 0, 0)

    def test_a_deletion_is_newer_than_what_it_deleted_whatever_the_clocks_say(self) -> None:
        with fresh_store() as store:
            take_in(store, [row("s")])
            rate(store, "s", item("m", at=90), at=90)
            rate(store, "s", "m", at=70)
            assert counts(take_in(store, [row("s", item("m", at=90))])) == (0, 0, 0, 1, 0)
            assert counts(take_in(store, [row("s", item("m", at=91))])) == (1, 0, 0, 0, 0)

    def test_a_later_life_stays_out_when_something_was_deleted_here_after_all_of_it(self) -> None:
        with fresh_store() as store:
            take_in(store, [row("s", item("m", at=50))])
            rate(store, "s", "m", at=60)
            assert counts(take_in(store, [row("s", item("m", at=59), life=NEXT_LIFE)])) == (0, 0, 0, 1, 0)
            assert counts(take_in(store, [row("s", item("m", at=60), life=NEXT_LIFE)])) == (1, 0, 0, 0, 0)

    def test_what_may_have_been_deleted_longer_ago_than_is_remembered_is_not_brought_back(self) -> None:
        """Unless it is so young that its deletion would be known, or the Session has no change that is forgotten."""
        kept_ms = 1000 * SETTINGS.command_retention
        with fresh_store() as store:
            take_in(store, [row("s", item("m", at=50))])
            store.prune(expired_before=NOW_MS + 2 * kept_ms, limit=99)
            assert counts(take_in(store, [row("s", item("m", at=50), item("new", at=50))])) == (1, 0, 1, 0, 0)
            rate(store, "s", item("gone", at=60), at=60)
            rate(store, "s", "gone", at=70)
            store.prune(expired_before=NOW_MS, limit=99)
            known_since = NOW_MS - kept_ms + CLOCK_SLACK_MS
            old, young = item("gone", at=known_since - 1), item("young", at=known_since)
            assert counts(take_in(store, [row("s", old, young)])) == (1, 0, 0, 1, 0)

    def test_a_later_life_is_taken_in_whole_however_many_transactions_it_takes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its first items are older than what it replaces; its last one decides for all."""
        monkeypatch.setattr(importing, "_MOST_ITEMS", 2)
        items = [item(f"m{at}", at=at, version=at + 1) for at in range(40, 61)]
        with fresh_store() as store:
            take_in(store, [row("s", item("old", at=60))])
            assert counts(take_in(store, [row("s", *items, life=NEXT_LIFE)])) == (21, 0, 0, 0, 0)
            (stored,) = contents(store)
            assert stored is not None
            assert (stored.identity, stored.items, stored.revision) == (NEXT_LIFE, tuple(items), 22)
            assert counts(take_in(store, [row("s", *items, life=NEXT_LIFE)])) == (0, 0, 21, 0, 0)

    def test_a_session_that_comes_twice_is_decided_twice(self) -> None:
        """As from a database that is written to while it is read: what comes later is imported over the earlier one."""
        with fresh_store() as store:
            first, second = item("m", at=50), item("m", at=51, version=2)
            report = take_in(store, [row("s", first), row("s", first), row("s", second), row("s", first)])
            assert counts(report) == (1, 1, 1, 1, 0)
            (stored,) = contents(store)
            assert stored is not None
            assert stored.items == (second,)


class TestUnderFire:
    def test_an_importer_that_is_fenced_off_goes_on_and_counts_once(self) -> None:
        """Whoever claims the partitions in the midst of a turn wins that turn."""
        with fresh_store() as store:
            turns = _Disturbed(store, times=3)
            importer = Importer(store, turns, clock_ms=lambda: 1, retention_ms=1, actor=None)
            assert counts(importer.run(ROWS, check=False)) == (5, 0, 0, 0, 0)
            assert turns.times == 0
            assert [one and one.session_id for one in contents(store)] == ["b", "10", "ä/\U0001f680", "", "9"]
            assert sum(map(len, outcomes(store).values())) == 5

    def test_an_importer_that_never_has_its_turn_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importing, "_PATIENCE_S", 0.0)
        with fresh_store() as store:
            importer = Importer(store, _Disturbed(store, times=99), clock_ms=lambda: 1, retention_ms=1, actor=None)
            with pytest.raises(QueueUnavailable, match="try again") as raised:
                importer.run(ROWS, check=False)
            assert isinstance(raised.value.__cause__, PartitionsFenced)
            assert contents(store) == []

    def test_nothing_is_imported_while_the_number_of_partitions_changes(self) -> None:
        """No Session may have two owners, one in each generation."""
        with fresh_store() as store:
            stored = store.topology()
            assert stored is not None
            changing = msgspec.structs.replace(stored, generation=2, partitions=8, former=4, retired=False)
            assert store.set_topology(changing, replacing=stored)
            with pytest.raises(QueueUnavailable, match="being changed"):
                take_in(store, ROWS)
            store.retire(changing)
            assert counts(take_in(store, ROWS)) == (5, 0, 0, 0, 0)


ids = st.sampled_from(["a", "b", "7", "10", "4294967295", "__proto__", "é\U0001f680", "\0", ""])
messages = st.lists(st.sampled_from("klmn"), unique=True, max_size=4)


@st.composite
def rows(draw: st.DrawFn, session_id: str) -> Row:
    items: list[Item] = []
    for place, message_id in enumerate(draw(messages)):
        note = draw(st.none() | st.sampled_from(["n", "\0", "\u2028x"]))
        items.append(item(message_id, at=1_800_000_000_000 + draw(st.integers(0, 3)), note=note, version=place + 1))
    return row(session_id, *items, life=draw(st.sampled_from([LIFE, NEXT_LIFE])))


media = st.lists(ids, unique=True, max_size=5).flatmap(lambda keys: st.tuples(*map(rows, keys)))
quick = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


class TestAnyMedium:
    @given(medium=media)
    @quick
    def test_comes_back_from_every_form(
        self, medium: tuple[Row, ...], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """export(import(x)) == x, and import(export(store)) leaves the store alone."""
        home = tmp_path_factory.mktemp("medium")
        with fresh_store() as store:
            take_in(store, medium)
            before = contents(store)
            document = exported(store, home / "first.json")
            indices = sorted((one for one in medium if is_index(one.session_id)), key=lambda one: int(one.session_id))
            ordered = [*indices, *(one for one in medium if not is_index(one.session_id))]
            assert document == b"".join(document_of(ordered))
            for form in Form:
                path = home / form
                report = export(store, form, path, overwrite=False, check=False, now=NOON)
                assert report.sessions + report.refused == len(medium)
                with fresh_store() as other:
                    take_in(other, read_medium(form, path))
                    again = home / f"again-{form}"
                    export(other, form, again, overwrite=False, check=False, now=NOON)
                    if form is Form.SQLITE:
                        assert dump(again) == dump(path)
                    elif form is Form.JSON:
                        assert again.read_bytes() == path.read_bytes() == document
                assert counts(take_in(store, read_medium(form, path)))[:2] == (0, 0)
                assert contents(store) == before

    @given(medium=media, other=media)
    @quick
    def test_is_merged_once_and_never_backwards(self, medium: tuple[Row, ...], other: tuple[Row, ...]) -> None:
        """A check says what will be; the import does it; doing it again changes nothing; no item goes back in time."""
        with fresh_store() as store:
            take_in(store, medium)
            before = {one.session_id: one for one in contents(store) if one}
            said = outcomes(store)
            expected = take_in(store, other, check=True)
            assert ({one.session_id: one for one in contents(store) if one}, outcomes(store)) == (before, said)
            assert take_in(store, other) == expected
            after = {one.session_id: one for one in contents(store) if one}
            for session_id, was in before.items():
                now = after[session_id]
                assert (now.identity.created_at, now.revision) >= (was.identity.created_at, was.revision)
                if now.identity == was.identity:
                    newer = {one.message_id: one for one in now.items}
                    assert [one.message_id for one in now.items][: len(was.items)] == [
                        one.message_id for one in was.items
                    ]
                    assert all(newer[one.message_id].updated_at >= one.updated_at for one in was.items)
            again = take_in(store, other)
            assert (again.added, again.updated) == (0, 0)
            assert {one.session_id: one for one in contents(store) if one} == after


class _Disturbed(Turns):
    """Somebody claims what was taken, each time, for so many times."""

    def __init__(self, store: SidecarStore, times: int) -> None:
        super().__init__(store, None, SETTINGS)
        self._claimed = store
        self.times = times

    @contextmanager
    def take(self, session_ids: Collection[str]) -> Iterator[Turn]:
        with super().take(session_ids) as turn:
            if self.times:
                self.times -= 1
                self._claimed.acquire_fences(list(turn.fences), "another")
            yield turn
