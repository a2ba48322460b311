"""What `persistence.sidecar.store` promises, for every engine."""

import pytest
from msgspec.structs import replace

from feedback.errors import StoreUnavailable
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import (
    EXPIRED,
    HISTORY_START,
    DeleteItem,
    Fence,
    PartitionsFenced,
    PutItem,
    StartSession,
    StoredSession,
    StoredTopology,
)
from tests.conformance.sidecar_engines import (
    FIRST_LIFE,
    NEXT_GENERATION,
    P0,
    P1,
    SECOND_LIFE,
    Engine,
    commit,
    item,
    message_ids,
    record,
)

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


def start(session_id: str = "s", *messages: str) -> list[StartSession | PutItem]:
    """A Session with these messages rated, in this order."""
    puts = [PutItem(session_id, item(message), revision) for revision, message in enumerate(messages, start=1)]
    return [StartSession(session_id, FIRST_LIFE), *puts]


class TestNewStore:
    def test_holds_nothing(self, store: SidecarStore) -> None:
        assert store.topology() is None
        assert store.heads([P0, P1]) == {P0: 0, P1: 0}
        assert store.outcomes(P0, 0, 10) == []
        assert store.record(UNKNOWN_ID) is None
        assert store.recorded([]) == store.recorded([UNKNOWN_ID]) == set()
        assert store.feedback("s") is None
        assert store.stored_sessions(["s", ""]) == {}
        assert store.prune(expired_before=2**60, limit=10) == 0

    def test_is_healthy(self, engine: Engine, store: SidecarStore) -> None:
        health = store.health()
        assert (health.sessions, health.items, health.commands, health.findings) == (0, 0, 0, engine.flaws)
        assert health.schema_version >= 1


class TestTopology:
    def test_is_set_only_over_what_the_caller_saw(self, store: SidecarStore) -> None:
        first, second = StoredTopology(1, 32), StoredTopology(2, 64)
        assert not store.set_topology(first, replacing=second)
        assert store.topology() is None
        assert store.set_topology(first, replacing=None)
        assert not store.set_topology(second, replacing=None)
        assert not store.set_topology(second, replacing=second)
        assert store.topology() == first
        assert store.set_topology(second, replacing=first)
        assert store.topology() == second


class TestFence:
    def test_each_owner_gets_the_next_epoch_of_each_partition(self, store: SidecarStore) -> None:
        assert store.acquire_fences([P0, P1], "a") == {P0: Fence(1, 0), P1: Fence(1, 0)}
        assert store.acquire_fences([P1, NEXT_GENERATION], "b") == {P1: Fence(2, 0), NEXT_GENERATION: Fence(1, 0)}
        assert store.acquire_fences([], "c") == {}

    def test_a_new_owner_learns_the_last_committed_sequence(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        commit(store, records=[record(1), record(2)], epochs={P0: epoch})
        assert store.acquire_fences([P0], "b") == {P0: Fence(2, 2)}

    def test_an_older_epoch_is_refused_and_all_stale_partitions_are_named(self, store: SidecarStore) -> None:
        old = {partition: fence.epoch for partition, fence in store.acquire_fences([P0, P1], "a").items()}
        store.acquire_fences([P0], "b")
        with pytest.raises(PartitionsFenced) as fenced:
            commit(store, start("s", "m"), [record(1, partition=P1)], epochs={**old, NEXT_GENERATION: 1})
        assert set(fenced.value.partitions) == {P0, NEXT_GENERATION}
        assert store.feedback("s") is None
        assert store.heads([P1]) == {P1: 0}
        commit(store, records=[record(1, partition=P1)], epochs={P1: old[P1]})

    def test_an_epoch_that_was_never_given_is_refused(self, store: SidecarStore) -> None:
        store.acquire_fences([P0], "a")
        for epoch in (0, 2):
            with pytest.raises(PartitionsFenced), store.transaction({P0: epoch}):
                pass


class TestTransaction:
    def test_one_that_raises_leaves_nothing(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        kept = record(1)
        commit(store, start("s", "m1"), [kept], epochs={P0: epoch})
        dropped = record(2)
        with pytest.raises(KeyError), store.transaction({P0: epoch}) as transaction:
            changes = [DeleteItem("s", "m1", 2), PutItem("s", item("m2"), 3), *start("t", "m1")]
            transaction.apply(changes, [dropped], {kept.command_id: 9_999})
            raise KeyError
        assert message_ids(store, "s") == ["m1"]
        assert store.feedback("t") is None
        assert store.stored_sessions(["s", "t"]) == {"s": StoredSession(FIRST_LIFE, 1)}
        assert (store.record(kept.command_id), store.record(dropped.command_id)) == (kept, None)
        assert store.heads([P0]) == {P0: 1}

    def test_nothing_is_visible_before_it_ends_and_all_of_it_after(self, store: SidecarStore) -> None:
        with store.transaction({}) as transaction:
            transaction.apply(start("s", "m"), [], {})
            assert store.feedback("s") is None
            assert store.stored_sessions(["s"]) == {}
        assert message_ids(store, "s") == ["m"]

    def test_one_that_ended_writes_no_more(self, store: SidecarStore) -> None:
        with store.transaction({}) as transaction:
            pass
        with pytest.raises(ValueError, match="ended"):
            transaction.apply(start("s", "m"), [], {})
        with pytest.raises(ValueError, match="ended"):
            transaction.load([], [("s", "m")])
        assert store.feedback("s") is None

    def test_load_gathers_what_is_stored_and_leaves_out_what_is_not(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        rated, known = item("m", note="because"), record(1)
        commit(store, [StartSession("s", FIRST_LIFE), PutItem("s", rated, 1)], [known], epochs={P0: epoch})
        with store.transaction({P0: epoch}) as transaction:
            snapshot = transaction.load(
                [known.command_id, UNKNOWN_ID], [("s", "m"), ("s", "other"), ("t", "m"), ("s", "m")]
            )
        assert snapshot.records == {known.command_id: known}
        assert snapshot.sessions == {"s": StoredSession(FIRST_LIFE, 1)}
        assert snapshot.items == {("s", "m"): rated}


class TestItems:
    def test_are_listed_in_order_of_first_creation(self, store: SidecarStore) -> None:
        commit(store, start("s", "z", "a", "m"))
        changed = item("z", rating="negative", note="on second thought")
        commit(store, [PutItem("s", changed, 4)])
        feedback = store.feedback("s")
        assert feedback is not None
        assert [stored.message_id for stored in feedback.items] == ["z", "a", "m"]
        assert feedback.items[0] == changed
        assert (feedback.session_id, feedback.identity, feedback.revision) == ("s", FIRST_LIFE, 4)

    def test_one_that_is_deleted_and_put_again_goes_to_the_end(self, store: SidecarStore) -> None:
        commit(store, start("s", "a", "b"))
        commit(store, [DeleteItem("s", "a", 3), PutItem("s", item("a"), 4)])
        assert message_ids(store, "s") == ["b", "a"]

    def test_the_last_delete_leaves_the_session_and_its_revision(self, store: SidecarStore) -> None:
        commit(store, [*start("s", "a"), DeleteItem("s", "a", 2)])
        feedback = store.feedback("s")
        assert feedback is not None
        assert (feedback.items, feedback.revision) == ((), 2)

    def test_a_cleared_note_is_gone(self, store: SidecarStore) -> None:
        commit(store, [StartSession("s", FIRST_LIFE), PutItem("s", item("m", note="n"), 1), PutItem("s", item("m"), 2)])
        feedback = store.feedback("s")
        assert feedback is not None
        assert feedback.items[0].note is None

    def test_another_identity_drops_the_items_and_keeps_the_revision(self, store: SidecarStore) -> None:
        commit(store, [*start("s", "a", "b"), *start("t", "a")])
        commit(store, [StartSession("s", SECOND_LIFE)])
        assert store.stored_sessions(["s", "t"]) == {
            "s": StoredSession(SECOND_LIFE, 2),
            "t": StoredSession(FIRST_LIFE, 1),
        }
        assert (message_ids(store, "s"), message_ids(store, "t")) == ([], ["a"])
        commit(store, [PutItem("s", item("a"), 3)])
        assert message_ids(store, "s") == ["a"]

    def test_the_same_identity_again_changes_nothing(self, store: SidecarStore) -> None:
        commit(store, start("s", "a"))
        commit(store, [StartSession("s", FIRST_LIFE)])
        assert message_ids(store, "s") == ["a"]
        assert store.stored_sessions(["s"]) == {"s": StoredSession(FIRST_LIFE, 1)}

    def test_no_working_directory_is_not_the_empty_one(self, store: SidecarStore) -> None:
        none, empty = SessionIdentity(created_at=5), SessionIdentity(created_at=5, cwd="")
        commit(store, [StartSession("s", none), PutItem("s", item("m"), 1)])
        assert store.stored_sessions(["s"])["s"].identity == none
        commit(store, [StartSession("s", empty)])
        assert store.stored_sessions(["s"])["s"].identity == empty
        assert message_ids(store, "s") == []

    def test_an_item_needs_its_sessions_row(self, store: SidecarStore) -> None:
        with pytest.raises(ValueError, match="no row"):
            commit(store, [*start("t", "m"), PutItem("s", item("m"), 1)])
        assert store.feedback("t") is None


ODD_IDS = [
    "",
    "\0",
    "a",
    "a\0",
    "a\0b",
    "A",
    "é",
    "e\u0301",
    "../x",
    "'; --",
    "%s ?1 :x",
    "\ufeff",
    "\U0001f600",
    "x" * 70_000,
]


class TestText:
    def test_ids_are_told_apart_by_every_byte(self, store: SidecarStore) -> None:
        for index, session_id in enumerate(ODD_IDS):
            commit(store, start(session_id, *ODD_IDS[index:]))
        for index, session_id in enumerate(ODD_IDS):
            assert message_ids(store, session_id) == ODD_IDS[index:]
        assert set(store.stored_sessions(ODD_IDS)) == set(ODD_IDS)

    @pytest.mark.parametrize("text", ODD_IDS)
    def test_notes_and_working_directories_are_kept_to_the_letter(self, store: SidecarStore, text: str) -> None:
        epoch = store.acquire_fences([P0], text)[P0].epoch
        identity, rated = SessionIdentity(created_at=0, cwd=text), item(text, note=text)
        kept = record(1, session_id=text)
        commit(store, [StartSession(text, identity), PutItem(text, rated, 1)], [kept], epochs={P0: epoch})
        feedback = store.feedback(text)
        assert feedback is not None
        assert (feedback.identity, feedback.items) == (identity, (rated,))
        assert store.record(kept.command_id) == kept
        with store.transaction({}) as transaction:
            assert transaction.load([], [(text, text)]).items == {(text, text): rated}


class TestRecords:
    @pytest.fixture
    def epochs(self, store: SidecarStore) -> dict[PartitionId, int]:
        fences = store.acquire_fences([P0, P1, NEXT_GENERATION], "a")
        return {partition: fence.epoch for partition, fence in fences.items()}

    def test_each_partition_counts_its_own(self, store: SidecarStore, epochs: dict[PartitionId, int]) -> None:
        records = [record(1), record(1, partition=P1), record(2), record(1, partition=NEXT_GENERATION), record(3)]
        commit(store, records=records, epochs=epochs)
        assert store.heads([P0, P1, NEXT_GENERATION]) == {P0: 3, P1: 1, NEXT_GENERATION: 1}
        assert [store.record(written.command_id) for written in records] == records
        known = {written.command_id for written in records}
        assert store.recorded([UNKNOWN_ID, *known]) == known

    @pytest.mark.parametrize(
        ("sequences", "refusal"),
        [
            ((1, 3), ValueError),
            ((1, 1), ValueError),
            *(((n,), PartitionsFenced) for n in (0, 2)),
            ((2, 1), PartitionsFenced),
        ],
    )
    def test_a_gap_or_a_repeated_number_is_refused_with_all_its_batch(
        self,
        store: SidecarStore,
        epochs: dict[PartitionId, int],
        sequences: tuple[int, ...],
        refusal: type[Exception],
    ) -> None:
        """An owner that begins at another place than the store knows is none: the store went back, or has another."""
        with pytest.raises(refusal):
            commit(store, start("s", "m"), [record(sequence) for sequence in sequences], epochs=epochs)
        assert store.feedback("s") is None
        assert store.heads([P0]) == {P0: 0}
        assert store.outcomes(P0, 0, 10) == []

    def test_only_of_partitions_that_the_transaction_is_fenced_for(
        self, store: SidecarStore, epochs: dict[PartitionId, int]
    ) -> None:
        with pytest.raises(ValueError, match="not fenced"):
            commit(store, records=[record(1, partition=P1)], epochs={P0: epochs[P0]})

    def test_a_command_id_is_recorded_once(self, store: SidecarStore, epochs: dict[PartitionId, int]) -> None:
        first = record(1)
        commit(store, records=[first], epochs=epochs)
        with pytest.raises(ValueError, match="contradict"):
            commit(store, records=[record(1, partition=P1, command_id=first.command_id)], epochs=epochs)
        assert store.record(first.command_id) == first
        assert store.heads([P1]) == {P1: 0}

    def test_outcomes_are_read_in_pages(self, store: SidecarStore, epochs: dict[PartitionId, int]) -> None:
        commit(store, records=[record(sequence) for sequence in range(1, 6)], epochs=epochs)
        commit(store, records=[record(1, partition=P1)], epochs=epochs)
        assert store.outcomes(P0, 0, 2) == [(1, b"event 1"), (2, b"event 2")]
        assert store.outcomes(P0, 2, 10) == [(3, b"event 3"), (4, b"event 4"), (5, b"event 5")]
        assert store.outcomes(P0, 5, 10) == []

    def test_deadlines_only_move_later(self, store: SidecarStore, epochs: dict[PartitionId, int]) -> None:
        moved, kept, young = record(1, expires_at=100), record(2, expires_at=100), record(3, expires_at=100)
        commit(store, records=[moved, kept], epochs=epochs)
        deadlines = {moved.command_id: 101, kept.command_id: 99, young.command_id: 200, UNKNOWN_ID: 500}
        commit(store, records=[young], deadlines=deadlines, epochs=epochs)
        assert store.record(moved.command_id) == replace(moved, expires_at=101)
        assert store.record(kept.command_id) == kept
        assert store.record(young.command_id) == replace(young, expires_at=200)
        assert store.record(UNKNOWN_ID) is None


class TestExpired:
    def test_is_recorded_beside_the_outcomes(self, engine: Engine, store: SidecarStore) -> None:
        """It has no event and no place in any sequence; it is found by its id, counted, and forgotten in its time."""
        epochs = {one: fence.epoch for one, fence in store.acquire_fences([P0, P1], "a").items()}
        late = [
            replace(record(0, partition=PartitionId(EXPIRED, number), expires_at=30), event=b"") for number in (0, 1, 0)
        ]
        commit(store, start("s", "m"), [record(1), *late[:2]], epochs=epochs)
        commit(store, records=[late[2], record(2)], epochs=epochs)
        with store.transaction(epochs) as transaction:
            found = transaction.load([one.command_id for one in late], []).records
        for one in late:
            stored = store.record(one.command_id)
            assert found[one.command_id] == stored
            assert stored is not None
            assert stored.is_expired
            assert replace(stored, sequence=0) == one
        assert store.heads([P0, P1]) == {P0: 2, P1: 0}
        assert [sequence for sequence, _ in store.outcomes(P0, 0, 10)] == [1, 2]
        assert [one.event for one in store.history("s", HISTORY_START, 10)] == [b"event 1", b"event 2"]
        assert (store.health().commands, store.health().findings) == (5, engine.flaws)
        assert store.prune(expired_before=31, limit=10) == 3
        assert store.health().commands == 2

    def test_bars_its_id(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        late = replace(record(0, partition=PartitionId(EXPIRED, 0)), event=b"")
        commit(store, records=[late], epochs={P0: epoch})
        for again in (late, record(1, command_id=late.command_id)):
            with pytest.raises(ValueError):
                commit(store, records=[again], epochs={P0: epoch})


class TestPrune:
    def test_forgets_what_expired_earliest_first_and_no_more_than_asked(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        records = [record(number, expires_at=deadline) for number, deadline in enumerate((30, 10, 20, 40), start=1)]
        commit(store, start("s", "m"), records, epochs={P0: epoch})
        assert store.prune(expired_before=10, limit=10) == 0
        assert store.prune(expired_before=40, limit=2) == 2
        assert [sequence for sequence, _ in store.outcomes(P0, 0, 10)] == [1, 4]
        assert store.prune(expired_before=40, limit=2) == 1
        assert store.prune(expired_before=40, limit=2) == 0
        assert [sequence for sequence, _ in store.outcomes(P0, 0, 10)] == [4]

    def test_leaves_items_and_numbers_alone(self, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        commit(store, start("s", "m"), [record(1)], epochs={P0: epoch})
        assert store.prune(expired_before=2**60, limit=10) == 1
        assert store.heads([P0]) == {P0: 1}
        assert message_ids(store, "s") == ["m"]
        commit(store, records=[record(2)], epochs={P0: epoch})


class TestHealth:
    def test_counts_what_is_stored(self, engine: Engine, store: SidecarStore) -> None:
        epoch = store.acquire_fences([P0], "a")[P0].epoch
        with store.transaction({P0: epoch}) as transaction:  # in parts: what was counted is not counted again
            transaction.apply(start("s", "m"), [record(1)], {})
            transaction.apply([PutItem("s", item("n"), 2), *start("t")], [], {})
        health = store.health()
        assert (health.sessions, health.items, health.commands, health.findings) == (2, 2, 1, engine.flaws)
        commit(store, [DeleteItem("s", "m", 3), DeleteItem("s", "never", 4), PutItem("s", item("n"), 5)])
        assert store.health().items == 1
        commit(store, [StartSession("s", SECOND_LIFE)])
        store.prune(expired_before=2**60, limit=10)
        health = store.health()
        assert (health.sessions, health.items, health.commands) == (2, 0, 0)


class TestClose:
    def test_a_closed_store_is_unavailable_and_may_be_closed_again(self, store: SidecarStore) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.feedback("s")
        with pytest.raises(StoreUnavailable, match="closed"), store.transaction({}):
            pass
