"""Fair shares: every partition is owned once, soon, whoever comes and goes and in whatever order they act."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.core.shares import SINGLE_PREFIX, Rebalance, rebalance

WORKERS = ("a", "b", "c", "d", "e", "dead")


class Table:
    """The owners hash: a worker acts on what it saw, by compare-and-set."""

    def __init__(self, owners: dict[int, str], partitions: int, alive: tuple[str, ...]) -> None:
        self.owners = owners
        self.partitions = partitions
        self.alive = alive
        self.moves = 0

    def share(self) -> int:
        return -(-self.partitions // len(self.alive))

    def plan(self, worker: str) -> Rebalance:
        return rebalance(worker, self.alive, dict(self.owners), self.partitions)

    def act(self, worker: str, plan: Rebalance) -> None:
        for number in plan.release:
            if self.owners.get(number) == worker:
                del self.owners[number]
                self.moves += 1
        for number, seen in plan.acquire:
            if self.owners.get(number) == seen:
                self.owners[number] = worker if seen is None else self._taken(number, worker, seen)

    def _taken(self, number: int, worker: str, seen: str) -> str:
        assert seen not in self.alive, f"{worker} takes {number} from {seen}, who is alive"
        return worker

    def settled(self) -> bool:
        held = Counter(self.owners[number] for number in range(self.partitions) if number in self.owners)
        return held.total() == self.partitions and all(
            owner in self.alive and count <= self.share() for owner, count in held.items()
        )


few = settings(max_examples=60)
tables = st.integers(1, 24).flatmap(
    lambda partitions: st.builds(
        Table,
        st.dictionaries(st.integers(0, partitions + 3), st.sampled_from(WORKERS)),
        st.just(partitions),
        st.lists(st.sampled_from(WORKERS[:-1]), min_size=1, unique=True).map(tuple),
    )
)


@few
@given(tables, st.randoms(use_true_random=False))
def test_any_state_settles_in_few_rounds(table: Table, order: random.Random) -> None:
    """All look, then all act, in any order and on what they saw: release, acquire, and what two wanted at once."""
    rounds = 0
    while not table.settled():
        rounds += 1
        plans = [(worker, table.plan(worker)) for worker in table.alive]
        order.shuffle(plans)
        for worker, plan in plans:
            table.act(worker, plan)
        assert rounds <= 5
    assert not any(table.plan(worker) for worker in table.alive)


@few
@given(tables, st.randoms(use_true_random=False))
def test_one_after_the_other_settles_in_two_rounds(table: Table, order: random.Random) -> None:
    """Who looks just before acting never wants what another has."""
    for _ in range(2):
        for worker in order.sample(table.alive, len(table.alive)):
            table.act(worker, table.plan(worker))
    assert table.settled()


@few
@given(tables, st.data())
def test_stale_views_do_no_harm(table: Table, data: st.DataObject) -> None:
    """Acting on what was seen some steps ago: at worst nothing happens; then it settles all the same."""
    stale = [(worker, table.plan(worker)) for worker in table.alive]
    for worker, plan in data.draw(st.lists(st.sampled_from(stale), max_size=8)):
        table.act(worker, plan)
    for _ in range(2):
        for worker in table.alive:
            table.act(worker, table.plan(worker))
    assert table.settled()


@few
@given(tables)
def test_a_worker_releases_no_more_than_its_excess(table: Table) -> None:
    """And never acquires while it has too many, nor past its share, nor what is another live worker's."""
    for worker in table.alive:
        mine = {number for number, owner in table.owners.items() if owner == worker and number < table.partitions}
        plan = table.plan(worker)
        assert len(plan.release) == max(0, len(mine) - table.share())
        assert set(plan.release) <= mine
        assert not (plan.release and plan.acquire)
        wanted = [number for number, _ in plan.acquire]
        assert len(set(wanted)) == len(wanted)
        assert not mine & set(wanted)
        assert len(mine) - len(plan.release) + len(wanted) <= table.share()
        for number, seen in plan.acquire:
            assert 0 <= number < table.partitions
            assert table.owners.get(number) == seen
            assert seen not in table.alive


@few
@given(tables)
def test_what_is_settled_stays(table: Table) -> None:
    """A move costs a drain and a new epoch: none is made for its own sake."""
    for _ in range(2):
        for worker in table.alive:
            table.act(worker, table.plan(worker))
    before = dict(table.owners)
    for worker in table.alive:
        assert table.plan(worker) == Rebalance()
    assert table.owners == before


def test_a_joining_worker_gets_only_what_the_others_have_too_much_of() -> None:
    """Eight partitions of one worker: four move, four stay."""
    table = Table(dict.fromkeys(range(8), "a"), 8, ("a", "b"))
    for worker in ("b", "a", "b"):
        table.act(worker, table.plan(worker))
    assert table.settled()
    assert table.moves == 4


def test_a_worker_alone_takes_all() -> None:
    """Also before its own heartbeat was seen, and from owners that are gone."""
    plan = rebalance("a", (), {0: "dead", 2: "a"}, 4)
    assert set(plan.acquire) == {(0, "dead"), (1, None), (3, None)}
    assert not plan.release


@pytest.mark.parametrize("partitions", [1, 3, 32])
def test_workers_that_join_together_start_at_different_places(partitions: int) -> None:
    """So that they seldom want the same partition."""
    alive = ("a", "b", "c")
    plans = [rebalance(worker, alive, {}, partitions).acquire for worker in alive]
    wanted = Counter(number for plan in plans for number, _ in plan)
    assert set(wanted) == set(range(partitions))
    assert wanted.total() - partitions < len(alive)


def test_an_empty_plan_is_false() -> None:
    """The caller asks whether there is anything to do."""
    assert not Rebalance()
    assert Rebalance(release=(1,))
    assert Rebalance(acquire=((1, None),))


def test_who_holds_a_partition_for_one_command_has_no_share() -> None:
    """It is not counted among the workers; what it holds is left to it while it is alive, and free afterwards."""
    single = SINGLE_PREFIX + "x"
    plan = rebalance("a", ("a", single), {0: single}, 4)
    assert sorted(plan.acquire) == [(1, None), (2, None), (3, None)]
    assert (0, single) in rebalance("a", ("a",), {0: single}, 4).acquire
