"""Batches against a model of the contract: any commands, any cuts, any trouble with the logs."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.commands import Command, DeleteCommand, PutCommand, digest_of
from feedback.events import decode_event, result_of
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from tests.unit.contract_model import (
    CORRUPT,
    MAX_NOTE_BYTES,
    UNREADABLE,
    ContractModel,
    DictStore,
    Expected,
    Log,
    World,
)
from worker.core.batching import Answered, Deferred, Outcome, Pending, Refused, decide_batch

SESSIONS = ("s0", "s1", "s2")
MESSAGES = ("m0", "m1")
PARTITIONS = {"s0": PartitionId(1, 0), "s1": PartitionId(1, 1), "s2": PartitionId(1, 0)}
LIVES = (SessionIdentity(created_at=1, cwd="/a"), SessionIdentity(created_at=1), SessionIdentity(created_at=2))
START = 1000


class Send(NamedTuple):
    """A new command; `condition` is what its `ifVersion` stands for when it is sent."""

    session: str
    message: str
    operation: str
    rating: Any
    note: str | None
    condition: str
    actor: str | None
    lifetime: int


class Again(NamedTuple):
    """An earlier command once more, to the letter or with a later deadline."""

    which: int
    later: int


class Reuse(NamedTuple):
    """An earlier command's id on another payload."""

    which: int
    send: Send


class Change(NamedTuple):
    """Between two batches: a Session's log is another one, gone, or cannot be read."""

    session: str
    world: World


class Cut(NamedTuple):
    """Here ends a batch; the clock goes on, or back."""

    milliseconds: int


ALL = frozenset(MESSAGES)
worlds: st.SearchStrategy[World] = st.sampled_from(
    (*(Log(life, ALL) for life in LIVES), Log(LIVES[0], ALL - {"m0"}), None, UNREADABLE, UNREADABLE, CORRUPT)
)
busy = st.sampled_from(("s0", "s0", "s0", "s1", "s2"))
sends = st.builds(
    Send,
    busy,
    st.sampled_from(MESSAGES),
    st.sampled_from(("put", "put", "delete")),
    st.sampled_from(("positive", "negative")),
    st.sampled_from((None, None, None, "n", "éé", " ", "ééé", "      ")),
    st.sampled_from(("current", "current", "current", "create", "wrong")),
    st.sampled_from((None, None, "me")),
    st.sampled_from((100, 100, 100, 0, -1)),
)
again = st.builds(Again, st.integers(0, 6), st.sampled_from((0, 0, 1000)))
reuses = st.builds(Reuse, st.integers(0, 6), sends)
changes = st.builds(Change, busy, worlds)
cuts = st.builds(Cut, st.sampled_from((0, 1, 7, 500, -3)))
steps = st.sampled_from((*[sends] * 6, *[again] * 2, reuses, *[changes] * 2, cuts)).flatmap(lambda kind: kind)
scripts = st.lists(steps, min_size=8, max_size=40)
Script = list[Send | Again | Reuse | Change | Cut]


class Run:
    """A script run through the core, batch by batch, beside the model."""

    def __init__(self) -> None:
        self.model = ContractModel()
        self.store = DictStore()
        self.worlds: dict[str, World] = {name: Log(LIVES[0], frozenset(MESSAGES)) for name in SESSIONS}
        self.now = START
        self.sent: list[Command] = []
        self.versions = 0
        self.batch: list[tuple[Pending, Expected]] = []
        self.parked: list[Command] = []

    def play(self, script: Script) -> None:
        """All of it, in batches."""
        for step in script:
            match step:
                case Cut(milliseconds=milliseconds):
                    self.finish()
                    self.now += milliseconds
                case Change(session=session, world=world):
                    self.finish()
                    self.worlds[session] = world
                case _:
                    self.send([step])
        self.finish()

    def send(self, script: Sequence[Send | Again | Reuse]) -> None:
        """Add commands to the batch."""
        for step in script:
            match step:
                case Again(which=which) if which < len(self.sent):
                    command = self.sent[which]
                    self.add(msgspec.structs.replace(command, expires_at=command.expires_at + step.later))
                case Reuse(which=which) if which < len(self.sent):
                    self.add(msgspec.structs.replace(self.new(step.send), command_id=self.sent[which].command_id))
                case Send():
                    command = self.new(step)
                    self.sent.append(command)
                    self.add(command)
                case _:
                    pass

    def new(self, send: Send) -> Command:
        current = self.model.current(send.session, send.message, self.worlds[send.session])
        version = current["version"] if current and send.condition == "current" else None
        members: dict[str, Any] = {
            "schema": 1,
            "command_id": str(UUID(int=len(self.sent))),
            "session_id": send.session,
            "message_id": send.message,
            "if_version": "wrong" if send.condition == "wrong" else version,
            "actor": send.actor,
            "expires_at": self.now + send.lifetime,
        }
        if send.operation == "delete":
            return DeleteCommand(**members)
        return PutCommand(**members, rating=send.rating, note=send.note)

    def add(self, command: Command) -> None:
        """Into the batch, behind what waits."""
        self.unpark()
        self._add(command)

    def unpark(self) -> None:
        """What was deferred comes first."""
        parked, self.parked = self.parked, []
        for command in parked:
            self._add(command)

    def _add(self, command: Command) -> None:
        world, partition = self.worlds[command.session_id], PARTITIONS[command.session_id]
        self.versions += 1
        version = f"v{self.versions}"
        pending = Pending(
            command=command,
            digest=digest_of(command),
            partition=partition,
            epoch=partition.number + 5,
            barrier=world,
            version=version,
        )
        self.batch.append((pending, self.model.expect(command, partition, world, self.now, version)))

    def finish(self) -> None:
        """Decide the batch, compare, apply."""
        self.unpark()
        batch = [pending for pending, _ in self.batch]
        outcomes = decided(self.store, batch, self.now)
        for (pending, expected), outcome in zip(self.batch, outcomes, strict=True):
            assert seen(pending, outcome) == expected
        self.parked = [one.command for one, end in zip(batch, outcomes, strict=True) if isinstance(end, Deferred)]
        assert_nothing_overtakes(batch, outcomes)
        self.batch = []
        self.model.blocked.clear()
        assert all(self.worlds[command.session_id] is UNREADABLE for command in self.parked)
        self.assert_stored()

    def assert_stored(self) -> None:
        """The store holds what the model holds, items in order of first creation."""
        for session_id, session in self.model.sessions.items():
            stored = self.store.sessions[session_id]
            assert (stored.identity, stored.revision) == (session["identity"], session["revision"])
            items = [msgspec.to_builtins(item) for item in self.store.items[session_id].values()]
            assert items == list(session["items"].values())
        assert self.store.sessions.keys() == self.model.sessions.keys()
        assert {key: record.expires_at for key, record in self.store.records.items()} == self.model.deadlines


def decided(store: DictStore, batch: Sequence[Pending], now: int) -> tuple[Outcome, ...]:
    """One batch: gather, decide, apply."""
    snapshot = store.load(
        [one.command.command_id for one in batch], [(one.command.session_id, one.command.message_id) for one in batch]
    )
    sequences = {partition: store.sequences.get(partition, 0) for partition in PARTITIONS.values()}
    decisions = decide_batch(snapshot, batch, sequences, now_ms=now, max_note_bytes=MAX_NOTE_BYTES, retention_ms=10**12)
    store.apply(decisions.changes, (*decisions.records, *decisions.expired), decisions.deadlines)
    return decisions.outcomes


def seen(pending: Pending, outcome: Outcome) -> Expected:
    """An outcome in the model's terms."""
    if isinstance(outcome, Refused):
        return "refused", outcome.error.code
    if isinstance(outcome, Deferred):
        return "deferred", outcome.error.code
    event, command = outcome.event, pending.command
    assert decode_event(outcome.encoded) == event
    assert (event.command_id, event.session_id, event.message_id) == (
        command.command_id,
        command.session_id,
        command.message_id,
    )
    assert (event.actor, event.partition, event.epoch) == (command.actor, pending.partition.number, pending.epoch)
    assert event.event_id == f"{pending.partition}-{outcome.sequence}"
    assert result_of(event).revision == event.revision
    members = msgspec.to_builtins(event)
    kind, item = members["type"], members.get("item")
    what = {"error": members["error"]} if kind == "feedback.rejected" else {"type": kind, "item": item}
    where = {"sequence": outcome.sequence, "revision": event.revision, "identity": event.session}
    return "answered", what | where


def assert_nothing_overtakes(batch: Sequence[Pending], outcomes: Sequence[Outcome]) -> None:
    """Behind a deferred command, every command of its Session is deferred."""
    waiting: set[str] = set()
    for pending, outcome in zip(batch, outcomes, strict=True):
        if pending.command.session_id in waiting:
            assert isinstance(outcome, Deferred)
        elif isinstance(outcome, Deferred):
            waiting.add(pending.command.session_id)


def test_a_new_life_starts_without_items() -> None:
    """Within one batch: its first put replaces the row, and with it what it held of other messages."""
    sends = [Send("s0", name, "put", "positive", None, "current", None, 100) for name in MESSAGES]
    run = Run()
    run.play([*sends, Change("s0", Log(LIVES[1], ALL)), *sends, Cut(1), *sends])
    assert run.model.sessions["s0"]["revision"] == 2 * len(MESSAGES)


@settings(max_examples=200)
@given(scripts)
def test_the_core_does_what_the_contract_says(script: Script) -> None:
    """Changing lives, duplicates, reused ids, deadlines, failing logs, several partitions, any batches."""
    Run().play(script)


@settings(max_examples=200)
@given(st.fixed_dictionaries(dict.fromkeys(SESSIONS, worlds)), scripts, st.data())
def test_a_batch_cut_anywhere_is_the_same_batch(here: dict[str, World], script: Script, data: st.DataObject) -> None:
    """Outcomes and store are the same, when what is deferred goes first in the next part. (A reused id would
    meet its other payload sooner or later, so there is none here.)"""
    run = Run()
    run.worlds = here
    run.send([step for step in script if isinstance(step, Send | Again)])
    batch = [pending for pending, _ in run.batch]
    whole, parts = DictStore(), DictStore()
    expected = decided(whole, batch, START)
    outcomes: dict[int, Outcome] = {}
    waiting: list[int] = []
    ends = data.draw(st.lists(st.integers(0, len(batch)), max_size=4).map(sorted))
    for start, end in zip([0, *ends], [*ends, len(batch)], strict=True):
        part = [*waiting, *range(start, end)]
        outcomes |= dict(zip(part, decided(parts, [batch[index] for index in part], START), strict=True))
        waiting = [index for index in part if isinstance(outcomes[index], Deferred)]
    assert [shown(outcomes[index]) for index in range(len(batch))] == list(map(shown, expected))
    assert (parts.sessions, parts.items, parts.records) == (whole.sessions, whole.items, whole.records)
    assert {key: list(items) for key, items in parts.items.items()} == {
        key: list(items) for key, items in whole.items.items()
    }


def shown(outcome: Outcome) -> object:
    """An outcome as something that compares equal."""
    if isinstance(outcome, Answered):
        return outcome.sequence, outcome.encoded
    return type(outcome), outcome.error.code
