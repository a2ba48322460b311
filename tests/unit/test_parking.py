"""Parked Sessions: order is kept, backoff grows, the first command is given up in the end and the rest go on."""

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier.rules import Flushed, FlushNeeded
from feedback.commands import DeleteCommand
from feedback.errors import FeedbackError, FlushUnanswered, LogUnreadable, StoreUnavailable
from feedback.flushing import FlushReply, LiveOwner
from feedback.model import SessionIdentity
from feedback.partitions import PartitionId
from worker.claims import Claim, Failed
from worker.core.retry import delay
from worker.parking import Excess, ParkingLot

PARTITION = PartitionId(1, 0)
ERROR = LogUnreadable("s", "/p", "EIO")


def claim(session_id: str, name: str) -> Claim:
    command = DeleteCommand(
        schema=1, command_id=name, session_id=session_id, message_id="m", if_version=None, expires_at=0
    )
    return Claim(PARTITION, name.encode(), command, b"digest", size=len(name))


A, B, C = (claim("s", name) for name in "abc")
OTHER = claim("t", "other")


def lot(max_attempts: int = 3) -> ParkingLot:
    return ParkingLot(max_attempts, lambda: 0.0)


def fail(parking: ParkingLot, claims: Sequence[Claim], now_s: float, error: FeedbackError = ERROR) -> list[Claim]:
    """All of these claims were tried and must wait; those that were given up."""
    parking.due(now_s)
    return [given for given, _ in parking.settle(claims, [(one, error) for one in claims], now_s)]


def due(parking: ParkingLot, now_s: float) -> list[Claim]:
    """The commands to be tried, of Sessions that wait for no flush."""
    ready = parking.due(now_s)
    assert ready.answers == {}
    return list(ready.claims)


def test_an_empty_lot_parks_nobody() -> None:
    """A command without parked ones before it is tried at once."""
    parking = lot()
    assert not parking.admit(A)
    assert (len(parking), parking.size(), parking.next_due(), due(parking, 1e9)) == (0, 0, None, [])


def test_a_deferred_session_waits_for_its_time() -> None:
    """In claim order, neither earlier nor in part."""
    parking = lot()
    assert fail(parking, [A, B], 100.0) == []
    then = 100.0 + delay(1, 0.0)
    assert (len(parking), parking.size(), parking.next_due()) == (2, 2, then)
    assert due(parking, then - 0.001) == []
    assert due(parking, then) == [A, B]
    assert len(parking) == 2, "they stay until it is known how they ended"


def test_later_commands_wait_behind() -> None:
    """Of the same Session; those of another one are not held up."""
    parking = lot()
    fail(parking, [A], 0.0)
    assert parking.admit(B)
    assert parking.admit(C)
    assert not parking.admit(OTHER)
    assert due(parking, 1.0) == [A, B, C]


def test_backoff_grows_with_each_failure() -> None:
    """By the same rule as everywhere."""
    parking = lot(max_attempts=10)
    for attempt in range(1, 9):
        assert fail(parking, [A], 1000.0 * attempt) == []
        assert parking.next_due() == 1000.0 * attempt + delay(attempt, 0.0)


def test_a_session_that_recovers_is_free() -> None:
    """All its commands ended: the next one is tried at once, and its failures count anew."""
    parking = lot()
    fail(parking, [A, B], 0.0)
    fail(parking, [A, B], 1.0)
    assert due(parking, 2.0) == [A, B]
    assert parking.settle([A, B], [], 2.0) == []
    assert (len(parking), parking.next_due()) == (0, None)
    assert not parking.admit(C)
    fail(parking, [C], 3.0)
    assert parking.next_due() == 3.0 + delay(1, 0.0)


def test_who_got_through_leaves_and_the_rest_count_anew() -> None:
    """The first command ended well, the second met trouble of its own."""
    parking = lot(max_attempts=3)
    fail(parking, [A, B], 0.0)
    fail(parking, [A, B], 1.0)
    assert due(parking, 2.0) == [A, B]
    assert parking.settle([A, B], [(B, ERROR)], 2.0) == []
    assert (due(parking, 9.0), parking.next_due()) == ([B], 2.0 + delay(1, 0.0))


def test_after_the_last_attempt_the_first_command_fails() -> None:
    """With its own error; the rest are tried at once, with all their attempts before them."""
    parking = lot(max_attempts=2)
    fail(parking, [A, B, C], 0.0)
    last = StoreUnavailable("down")
    assert due(parking, 5.0) == [A, B, C]
    assert parking.settle([A, B, C], [(A, last), (B, ERROR), (C, ERROR)], 5.0) == [(A, Failed.of(last))]
    assert (parking.next_due(), due(parking, 5.0)) == (5.0, [B, C])
    assert fail(parking, [B, C], 6.0) == []
    assert fail(parking, [B, C], 7.0) == [B]
    assert fail(parking, [C], 8.0) == []
    assert fail(parking, [C], 9.0) == [C]
    assert (len(parking), parking.next_due()) == (0, None)
    assert not parking.admit(A)


def test_a_single_attempt_gives_up_at_once() -> None:
    """Each command still gets one of its own."""
    parking = lot(max_attempts=1)
    assert fail(parking, [A, B], 0.0) == [A]
    assert due(parking, 0.0) == [B]
    assert fail(parking, [B], 0.0) == [B]


def test_sessions_are_counted_apart() -> None:
    """One that recovers and one that does not, in the same batch."""
    parking = lot(max_attempts=2)
    assert parking.settle([A, OTHER, B], [(A, ERROR), (OTHER, ERROR), (B, ERROR)], 0.0) == []
    assert due(parking, 1.0) == [A, B, OTHER]
    assert parking.settle([A, OTHER, B], [(A, ERROR), (B, ERROR)], 1.0) == [(A, Failed.of(ERROR))]
    assert (due(parking, 1.0), len(parking)) == ([B], 1)


def test_a_batch_of_others_leaves_the_parked_alone() -> None:
    """Only what was tried is settled."""
    parking = lot()
    fail(parking, [A, B], 0.0)
    parking.settle([OTHER], [], 1.0)
    assert due(parking, 9.0) == [A, B]


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.99])
def test_jitter_is_the_callers(jitter: float) -> None:
    """One draw for each wait."""
    parking = ParkingLot(3, lambda: jitter)
    fail(parking, [A], 0.0)
    assert parking.next_due() == delay(1, jitter)


OWNER = LiveOwner(owner_id="o", session_id="s", identity=SessionIdentity(created_at=1))


def wait_for_flush(parking: ParkingLot, claims: Sequence[Claim], now_s: float) -> None:
    """Their Session's owner has to flush, and was asked for 5 seconds."""
    assert fail(parking, claims, now_s, FlushNeeded(OWNER)) == []
    assert parking.flushes_needed() == [OWNER]
    parking.flush_requested("s", "r", now_s + 5)
    assert parking.flushes_needed() == []


def test_a_session_waits_for_its_owners_flush() -> None:
    """Without a time of its own until the owner was asked; then until the answer, which comes with the commands."""
    parking = lot()
    fail(parking, [A, B], 0.0, FlushNeeded(OWNER))
    assert (parking.next_due(), due(parking, 1e9)) == (math.inf, [])
    parking.flush_requested("s", "r", 5.0)
    assert (parking.next_due(), due(parking, 4.9)) == (5.0, [])
    parking.flush_answered(FlushReply(request_id="another", status="flushed"), 1.0)
    assert due(parking, 1.0) == []
    parking.flush_answered(FlushReply(request_id="r", status="flushed", durable=7), 1.0)
    answered = parking.due(1.0)
    assert (answered.claims, answered.answers) == ([A, B], {"s": Flushed(OWNER.identity, 7)})
    assert parking.settle([A, B], [], 1.0) == []
    assert (len(parking), parking.next_due()) == (0, None)


def test_what_came_after_the_request_waits_for_the_next_flush() -> None:
    """It may be about a message that this flush does not reach; and it has all its attempts before it."""
    parking = lot(max_attempts=3)
    fail(parking, [A], 0.0)
    fail(parking, [A], 1.0)
    wait_for_flush(parking, [A], 2.0)
    assert parking.admit(B)
    parking.flush_answered(FlushReply(request_id="r", status="flushed"), 3.0)
    assert parking.due(3.0).claims == [A]
    assert parking.settle([A], [], 3.0) == []
    assert due(parking, 3.0) == [B]
    assert fail(parking, [B], 4.0) == []
    assert parking.next_due() == 4.0 + delay(1, 0.0)


def test_a_flush_that_nobody_answered_has_failed() -> None:
    """At the end of patience; an answer that comes later is not listened to."""
    parking = lot()
    wait_for_flush(parking, [A], 0.0)
    late = parking.due(5.0)
    assert late.claims == [A]
    assert isinstance(late.answers["s"], FlushUnanswered)
    assert fail(parking, [A], 5.0, FlushUnanswered("no answer")) == []
    parking.flush_answered(FlushReply(request_id="r", status="flushed"), 6.0)
    assert due(parking, 5.0 + delay(1, 0.0)) == [A]


def test_waiting_for_a_flush_is_no_attempt() -> None:
    """Only failures count."""
    parking = lot(max_attempts=2)
    for now_s in (0.0, 10.0, 20.0):
        wait_for_flush(parking, [A], now_s)
        parking.flush_answered(FlushReply(request_id="r", status="flushed"), now_s)
    assert fail(parking, [A], 30.0) == []
    assert fail(parking, [A], 40.0) == [A]


class Aside:
    """What `worker.aside` keeps in Redis, each Session's in order."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Claim]] = {}

    def make_room(self, parking: ParkingLot, *, crowded: bool) -> None:
        for one in parking.excess(crowded=crowded):
            of_session = self.waiting.setdefault(one.claim.command.session_id, [])
            of_session.insert(0 if one.before else len(of_session), one.claim)

    def resume(self, parking: ParkingLot, most: int) -> None:
        for session_id in parking.exhausted():
            claims, left = self.waiting[session_id][:most], self.waiting[session_id][most:]
            self.waiting[session_id] = left
            parking.resume(session_id, claims, aside=bool(left))


turns = st.tuples(st.integers(0, 5), st.sets(st.sampled_from("st")), st.sampled_from((0.01, 1.0, 40.0)), st.booleans())


@given(st.lists(st.sampled_from("st"), max_size=16), st.lists(turns, max_size=15), st.integers(1, 4))
def test_every_command_ends_once_and_in_order(
    sessions: list[str], script: list[tuple[int, set[str], float, bool]], max_attempts: int
) -> None:
    """Whatever fails, whenever new commands come and room is made: a Session's end in the order they were claimed."""
    parking, aside, now = ParkingLot(max_attempts, lambda: 0.0, batch_size=3), Aside(), 0.0
    claims = [claim(session_id, str(number)) for number, session_id in enumerate(sessions)]
    coming, ended = list(claims), list[Claim]()
    rest = [(len(claims), set[str](), 60.0, False)] * (len(claims) + 2)
    for arriving, broken, seconds, crowded in [*script, *rest]:
        arrived, coming = coming[:arriving], coming[arriving:]
        fresh = [one for one in arrived if not parking.admit(one)]
        aside.make_room(parking, crowded=crowded)
        aside.resume(parking, 2)
        batch = due(parking, now) + fresh
        ended += [one for one in batch if one.command.session_id not in broken]
        deferred = [(one, ERROR) for one in batch if one.command.session_id in broken]
        ended += [one for one, _ in parking.settle(batch, deferred, now)]
        held = [one for one in claims[: len(claims) - len(coming)] if one not in ended]
        away = [one for of_session in aside.waiting.values() for one in of_session]
        assert len(parking) == len(held) - len(away)
        assert parking.size() == sum(one.size for one in held if one not in away)
        now += seconds
    assert len(ended) == len(claims)
    assert not parking
    for session_id in "st":
        of_session = [one for one in claims if one.command.session_id == session_id]
        assert [one for one in ended if one.command.session_id == session_id] == of_session


def test_room_is_made_but_for_the_first_of_each_session_and_for_suspects() -> None:
    """What comes later goes where its Session's others are, also when there is room again."""
    parking = lot()
    suspects = [msgspec.structs.replace(one, suspect=True) for one in (A, B)]
    fail(parking, [*suspects, C, OTHER], 0.0)
    assert parking.excess(crowded=False) == []
    assert parking.excess(crowded=True) == [Excess(C, before=True)]
    assert (len(parking), parking.exhausted()) == (3, [])
    assert parking.admit(C)
    assert (len(parking), parking.excess(crowded=False)) == (4, [Excess(C, before=False)])
    assert due(parking, 9.0) == [suspects[0], OTHER]
    assert parking.settle(suspects, [], 9.0) == []
    assert due(parking, 9.0) == [suspects[1], OTHER]


def test_a_suspect_is_tried_alone_and_the_rest_of_its_session_after_it() -> None:
    """It may be what ends workers: whoever is tried with it could not be told apart. With a flush and without."""
    parking = lot()
    suspect = msgspec.structs.replace(A, suspect=True)
    fail(parking, [suspect, B, C], 100.0)
    then = 100.0 + delay(1, 0.0)
    assert due(parking, then) == [suspect]
    assert parking.settle([suspect], [(suspect, FlushNeeded(OWNER))], then) == []
    parking.flush_requested("s", "r1", then + 2)
    parking.flush_answered(FlushReply(request_id="r1", status="flushed"), then + 1)
    assert list(parking.due(then + 1).claims) == [suspect]
    assert parking.settle([suspect], [], then + 1) == []
    assert due(parking, then + 1) == [B, C]
