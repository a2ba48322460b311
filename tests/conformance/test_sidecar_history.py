"""A Session's history, for every engine: what became of its commands, in commit order."""

from persistence.sidecar import SidecarStore
from persistence.sidecar.store import HISTORY_START, RecordedOutcome
from tests.conformance.sidecar_engines import NEXT_GENERATION, P0, P1, commit, record

STRETCH = 2048
"""How many numbers of a partition share a stretch of the index."""


def test_lists_one_sessions_outcomes_in_commit_order_over_partitions_and_generations(store: SidecarStore) -> None:
    epochs = {p: fence.epoch for p, fence in store.acquire_fences([P0, P1, NEXT_GENERATION], "a").items()}
    mine = [record(1), record(3), record(1, partition=NEXT_GENERATION)]
    others = [record(2, session_id="s\0"), record(1, partition=P1, session_id="S")]
    commit(store, records=[mine[0], others[0], mine[1]], epochs=epochs)
    commit(store, records=[others[1], mine[2]], epochs=epochs)
    expected = [RecordedOutcome(kept.partition, kept.sequence, kept.applied_at, kept.event) for kept in mine]
    assert store.history("s", HISTORY_START, 10) == expected
    assert store.history("s\0", HISTORY_START, 10)[0].position == (1, 0, 2)
    assert store.history("", HISTORY_START, 10) == []


def test_is_read_in_pages_over_stretches_of_the_index_and_begins_after_what_was_forgotten(store: SidecarStore) -> None:
    epochs = {P0: store.acquire_fences([P0], "a")[P0].epoch}
    known = {1, STRETCH - 1, STRETCH, 3 * STRETCH + 7}
    records = [
        record(number, session_id="s" if number in known else "t", expires_at=number)
        for number in range(1, max(known) + 2)
    ]
    commit(store, records=records, epochs=epochs)
    seen, position = [], HISTORY_START
    while page := store.history("s", position, 3):
        seen += [outcome.sequence for outcome in page]
        position = page[-1].position
    assert seen == sorted(known)
    store.prune(expired_before=STRETCH, limit=STRETCH)
    assert [outcome.sequence for outcome in store.history("s", HISTORY_START, 10)] == sorted(known)[2:]
