"""Writers and readers at the same time: threads on one store, and processes on one database."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from persistence.sidecar import SidecarStore
from persistence.sidecar.store import Change, PartitionsFenced, PutItem, StartSession
from tests.conformance.racing_owner import SESSION, compete
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, P1, Engine, commit, item, record

ROOT = Path(__file__).parents[2]


def in_parallel(*tasks: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def assert_every_commit_counted(store: SidecarStore, commits: int) -> None:
    feedback = store.feedback(SESSION)
    assert feedback is not None
    assert (feedback.revision, len(feedback.items)) == (commits, commits)
    assert store.heads([P0]) == {P0: commits}
    assert [sequence for sequence, _ in store.outcomes(P0, 0, commits + 1)] == list(range(1, commits + 1))


def test_owners_in_threads_that_take_a_partition_from_each_other_lose_no_commit(store: SidecarStore) -> None:
    in_parallel(*(lambda name=name: compete(store, name, 50) for name in "abcd"))
    assert_every_commit_counted(store, 200)


@pytest.mark.process
def test_owners_in_processes_that_take_a_partition_from_each_other_lose_no_commit(engine: Engine) -> None:
    store = engine.fresh()
    command = [sys.executable, "-W", "error", "-m", "tests.conformance.racing_owner", engine.url(store)]
    owners = [subprocess.Popen([*command, name, "60"], cwd=ROOT) for name in "ab"]
    compete(store, "c", 60)
    assert [owner.wait(60) for owner in owners] == [0, 0]
    assert_every_commit_counted(store, 180)


def test_of_two_owners_with_the_same_knowledge_only_the_newer_one_commits(store: SidecarStore) -> None:
    old = store.acquire_fences([P0], "old")[P0].epoch
    new = store.acquire_fences([P0], "new")[P0].epoch
    both = threading.Barrier(2)

    def write(epoch: int) -> bool:
        both.wait()
        try:
            commit(store, records=[record(1)], epochs={P0: epoch})
        except PartitionsFenced:
            return False
        return True

    assert in_parallel(lambda: write(old), lambda: write(new)) == [False, True]
    assert store.heads([P0]) == {P0: 1}


def test_a_takeover_waits_for_an_open_transaction_and_sees_what_it_committed(store: SidecarStore) -> None:
    epoch = store.acquire_fences([P0], "old")[P0].epoch
    with ThreadPoolExecutor(1) as pool:
        with store.transaction({P0: epoch}) as transaction:
            transaction.load([], [])
            takeover = pool.submit(store.acquire_fences, [P0], "new")
            transaction.apply([], [record(1)], {})
            assert not takeover.done()
        fence = takeover.result()[P0]
    assert (fence.epoch, fence.sequence) == (epoch + 1, 1)


def test_partitions_are_written_from_many_threads_that_end(store: SidecarStore) -> None:
    epochs = {partition: fence.epoch for partition, fence in store.acquire_fences([P0, P1], "a").items()}

    def write(number: int) -> None:
        partition = (P0, P1)[number % 2]
        session = f"s{number}"
        with store.transaction({partition: epochs[partition]}) as transaction:
            transaction.load([], [])  # from here on nobody else writes
            sequence = store.heads([partition])[partition] + 1
            changes: list[Change] = [StartSession(session, FIRST_LIFE), PutItem(session, item("m"), 1)]
            transaction.apply(changes, [record(sequence, partition=partition, session_id=session)], {})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.heads([P0, P1]) == {P0: 20, P1: 20}
    assert len(store.stored_sessions([f"s{number}" for number in range(40)])) == 40


def test_a_reader_sees_whole_commits_only(store: SidecarStore) -> None:
    """Each commit adds two items and two revisions, so that any mixture would show."""
    commit(store, [StartSession("s", FIRST_LIFE)])
    done = threading.Event()

    def write() -> None:
        try:
            for revision in range(1, 200, 2):
                puts = [PutItem("s", item(f"m{number}"), number) for number in (revision, revision + 1)]
                commit(store, puts)
        finally:
            done.set()

    def read() -> int:
        seen = reads = 0
        while not done.is_set():
            feedback = store.feedback("s")
            assert feedback is not None
            assert feedback.revision == len(feedback.items) >= seen
            assert feedback.revision % 2 == 0
            seen, reads = feedback.revision, reads + 1
        return reads

    in_parallel(write, read, read)
    feedback = store.feedback("s")
    assert feedback is not None
    assert feedback.revision == 200
