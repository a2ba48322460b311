"""The campaign's checker finds nothing in a sound history, and each kind of damage in one that is not."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from feedback.events import Event, FeedbackDeleted, FeedbackPut, FeedbackRejected, result_of
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from feedback.requests import Delete, Put
from feedback.results import ItemList, Ok, VersionConflict, at_revision
from tests.chaos.checker import check
from tests.chaos.history import Call, Heard, History, Mutation, Reading
from tests.chaos.known_logs import ABSENT, LogPeriods, LogState

FIRST, NEXT = PartitionId(1, 0), PartitionId(2, 0)
LIFE = SessionIdentity(created_at=1)
ITEM = Item(message_id="m", rating="positive", version="v1", created_at=1, updated_at=1)
Records = list[tuple[int, Event]]
Damage = Callable[[History, Records], None]


def sound() -> tuple[History, Records]:
    """Put, conflict, list, delete: one after the other, each answered."""
    requests: Sequence[Mutation] = (
        Put("s", "m", "positive", command_id="a"),
        Put("s", "m", "negative", command_id="b"),
        Delete("s", "m", "v1", command_id="c"),
    )
    members = {"session_id": "s", "session": LIFE, "message_id": "m", "occurred_at": 1, "partition": 0, "epoch": 1}
    events: Sequence[Event] = (
        FeedbackPut(**members, event_id="1-0-1", command_id="a", revision=1, item=ITEM),  # type: ignore[arg-type]  # shared members
        FeedbackRejected(
            **members,  # type: ignore[arg-type]  # shared members
            event_id="1-0-2",
            command_id="b",
            revision=1,
            error=VersionConflict(current=ITEM),
        ),
        FeedbackDeleted(**members, event_id="1-0-3", command_id="c", revision=2),  # type: ignore[arg-type]  # shared members
    )
    times = count(0.0, 10.0)
    calls = [
        Call(request, Heard(began, began + 1, result_of(event)))
        for request, event, began in zip(requests, events, times, strict=False)
    ]
    listed = at_revision(Ok(value=ItemList(items=(ITEM,))), 1)
    return History(calls, [Reading("s", 1, Heard(12, 13, listed))]), list(enumerate(events, start=1))


def lose_a_record(history: History, records: Records) -> None:
    records.pop()


def repeat_an_effect(history: History, records: Records) -> None:
    records.append((4, records[0][1]))


def skip_a_sequence(history: History, records: Records) -> None:
    records[2] = (4, records[2][1])


def go_back_an_epoch(history: History, records: Records) -> None:
    records[1] = (2, replace(records[1][1], epoch=2))


def skip_a_revision(history: History, records: Records) -> None:
    records[2] = (3, replace(records[2][1], revision=3))


def accept_a_stale_version(history: History, records: Records) -> None:
    history.calls[0] = replace(history.calls[0], request=replace(history.calls[0].request, if_version="v0"))


def commit_against_time(history: History, records: Records) -> None:
    history.calls[1] = replace(history.calls[1], heard=replace(history.calls[1].heard, began=-20, ended=-19))


def answer_something_else(history: History, records: Records) -> None:
    history.calls[2] = replace(history.calls[2], heard=history.calls[0].heard)


def expire_what_took_effect(history: History, records: Records) -> None:
    history.calls[2] = replace(history.calls[2], heard=Heard(20, 21, failure="CommandExpired"))


def fail_without_cause(history: History, records: Records) -> None:
    history.calls.append(Call(Put("s", "m", "positive", command_id="d"), Heard(30, 31, failure="CommandFailed")))


def list_what_was_before(history: History, records: Records) -> None:
    history.readings[0] = replace(
        history.readings[0], at_least=None, heard=replace(history.readings[0].heard, began=22)
    )


def list_the_future(history: History, records: Records) -> None:
    history.readings[0] = replace(
        history.readings[0],
        heard=replace(history.readings[0].heard, result=at_revision(Ok(value=ItemList(items=())), 2)),
    )


def list_other_items(history: History, records: Records) -> None:
    history.readings[0] = replace(
        history.readings[0],
        heard=replace(history.readings[0].heard, result=at_revision(Ok(value=ItemList(items=())), 1)),
    )


def go_back_behind_a_list(history: History, records: Records) -> None:
    """One list shows what is committed and not answered yet; the next one does not."""
    history.calls[2] = replace(history.calls[2], heard=replace(history.calls[2].heard, ended=40))
    before = replace(history.readings[0], at_least=None, heard=replace(history.readings[0].heard, began=26, ended=27))
    deleted = at_revision(Ok(value=ItemList(items=())), 2)
    history.readings[:] = [before, Reading("s", None, Heard(24, 25, deleted))]


def test_a_sound_history_passes() -> None:
    history, records = sound()
    checked = check(history, {FIRST: records})
    assert checked.violations == []
    assert (checked.calls, checked.answers, checked.readings, checked.outcomes) == (3, 3, 1, 3)


def test_an_unknown_outcome_may_be_either() -> None:
    """A call that timed out took effect, or did not."""
    history, records = sound()
    history.calls[2] = replace(history.calls[2], heard=Heard(20, 21, failure="ResultTimeout"))
    assert check(history, {FIRST: records}).violations == []
    assert check(history, {FIRST: records[:2]}).violations == []


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_record,
        repeat_an_effect,
        skip_a_sequence,
        go_back_an_epoch,
        skip_a_revision,
        accept_a_stale_version,
        commit_against_time,
        answer_something_else,
        expire_what_took_effect,
        fail_without_cause,
        list_what_was_before,
        list_the_future,
        list_other_items,
        go_back_behind_a_list,
    ],
)
def test_damage_is_found(damage: Damage) -> None:
    history, records = sound()
    damage(history, records)
    assert check(history, {FIRST: records}).violations


def test_a_session_goes_on_in_the_next_generation() -> None:
    """Its partition there begins with sequence and epoch anew; revisions, items and time go on."""
    history, records = sound()
    ((_, last),) = records[2:]
    after = {NEXT: [(1, replace(last, epoch=1))], FIRST: [(1, records[0][1]), (2, replace(records[1][1], epoch=7))]}
    assert check(history, after).violations == []
    before = {FIRST: after[NEXT], NEXT: after[FIRST]}
    assert check(history, before).violations


def test_two_workers_in_one_epoch_are_found() -> None:
    """Of the same partition only."""
    history, records = sound()
    apart = [(FIRST, 1, "w"), (FIRST, 2, "v"), (NEXT, 1, "v"), (FIRST, 1, "w")]
    assert check(history, {FIRST: records}, commits=apart).violations == []
    assert check(history, {FIRST: records}, commits=[*apart, (NEXT, 1, "w")]).violations


def logs_of(*states: LogState) -> LogPeriods:
    """The log of Session "s" in these states, one after the other, from long before until now."""
    logs = LogPeriods()
    for state in states:
        logs.change("s", state, lambda: None)
    (*earlier, now) = logs._periods["s"]
    for place, period in enumerate(earlier):
        period.begins, period.ends = -100.0 + place, -99.0 + place
    now.begins = -99.0 + len(earlier)
    return logs


SOUND = LogState(LIFE, ("m",))


def test_the_log_bears_what_was_committed_and_what_was_refused() -> None:
    """Somewhen between sending and answer; what it said before that counts for nothing."""
    history, records = sound()
    assert check(history, {FIRST: records}, logs=logs_of(ABSENT, SOUND)).violations == []
    other = LogState(SessionIdentity(created_at=2), ("m",))
    for now in (ABSENT, LogState(LIFE), LogState(failure="LogCorrupt"), other):
        found = check(history, {FIRST: records}, logs=logs_of(SOUND, now)).violations
        assert found, now
        assert all(one.startswith(("no feedback without", "lists show")) for one in found), found


@pytest.mark.parametrize("failure", ["LogCorrupt", "LogUnreadable"])
def test_a_failure_needs_a_cause(failure: str) -> None:
    """A log that was damaged, or could not be read, when the command or the list was under way."""
    history, records = sound()
    history.calls.append(Call(Put("s", "m", "positive", command_id="d"), Heard(30, 31, failure=failure)))
    history.readings.append(Reading("s", None, Heard(30, 31, failure=failure)))
    assert len(check(history, {FIRST: records}, logs=logs_of(LogState(failure=failure), SOUND)).violations) == 2
    logs = logs_of(SOUND)
    logs.hinder(["s"], failure)
    logs._hindrances["s"][0].begins = 29.0
    assert check(history, {FIRST: records}, logs=logs).violations == []


def test_only_a_command_that_met_a_defect_may_fail_for_that() -> None:
    """The defects of a campaign are those that it armed, and the worker says over which command it met one."""
    history, records = sound()
    history.calls.append(Call(Put("s", "m", "positive", command_id="d"), Heard(30, 31, failure="CommandFailed")))
    assert len(check(history, {FIRST: records}, broken={"another"}).violations) == 1
    assert check(history, {FIRST: records}, broken={"d"}).violations == []
