"""The owner of live Sessions without a server: what it would send, when, and what it makes of the answers."""

import math
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError

from feedback import keys
from feedback.calls import Call
from feedback.errors import InvalidRequest, QueueUnavailable, ShuttingDown
from feedback.flushing import FlushReply, FlushRequest, decode_reply, encode_request
from feedback.live_core import BATCH, CLOSE_S, LiveCore, _hold, _leave, _reply
from feedback.live_requests import MOST_PENDING, Outcome, Registration, Signal
from feedback.model import SessionIdentity

LIFE = SessionIdentity(created_at=1, cwd="/w")
OTHER_LIFE = SessionIdentity(created_at=2, cwd="/w")
LOST = RedisConnectionError("gone")
NAMES = {script.sha: script.name for script in (_hold, _leave, _reply)} | {
    script.source: script.name for script in (_hold, _leave, _reply)
}


class Stage:
    """A core whose clocks the test turns, and the server's part: every call is noted and answered."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = LiveCore[str]("me", 6.0, clock=lambda: self.now, clock_ms=self.wall_ms, jitter=lambda: 1.0)
        self.calls: list[tuple[str, Sequence[object]]] = []
        self.replies: list[FlushReply] = []
        self.known = False

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def register(self, session_id: str = "s", life: SessionIdentity = LIFE) -> Registration[str]:
        registration = Registration(session_id, life, "flush", settled=threading.Event(), ended=threading.Event())
        self.core.register(registration)
        return registration

    def settled(self, session_id: str = "s") -> Registration[str]:
        registration = self.register(session_id)
        self.run()
        return registration

    def request(self, name: str, session_id: str = "s", *, life: SessionIdentity = LIFE, seconds: float = 10) -> bytes:
        deadline = self.wall_ms() + int(seconds * 1000)
        return encode_request(
            FlushRequest(request_id=name, worker_id="w", session_id=session_id, session=life, deadline=deadline)
        )

    def ask(self, name: str, session_id: str = "s", *, seconds: float = 10) -> Registration[str] | None:
        return self.core.receive(self.request(name, session_id, seconds=seconds))

    def run(self) -> list[str]:
        """Make all calls that are due now; their scripts' names."""
        begun = len(self.calls)
        while (call := self.core.next_call()) is not None:
            self.core.answered(self.serve(call))
        return [name for name, _ in self.calls[begun:]]

    def serve(self, call: Call) -> list[int]:
        _, script, count, *rest = call.args
        name = NAMES[script]
        self.calls.append((name, rest))
        if name == "live_reply":
            self.replies += [decode_reply(body) for body in rest[count + 1 :]]
            return [count]
        if name == "live_hold":
            known, self.known = self.known, True
            return [int(known), *[1] * (count - 1)]
        if self.core.closing and rest[count + 1] == 1:
            self.core.receive(b"")
        return [0]

    def answers(self) -> dict[str, str]:
        self.run()
        return {reply.request_id: reply.status for reply in self.replies}


def is_set(signal: Signal) -> bool:
    assert isinstance(signal, threading.Event)
    return signal.is_set()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_first_registration_is_one_call_and_says_the_whole_identity(stage: Stage) -> None:
    registration = stage.register()
    assert stage.run() == ["live_hold"]
    assert is_set(registration.settled)
    assert stage.calls[0][1] == [
        keys.owner("me"), keys.live("s"), "me", 6000, keys.LIVE_TTL_S, keys.OWNER_PREFIX, "take", "s", 1, "=/w"
    ]  # fmt: skip


def test_no_working_directory_is_not_an_empty_one(stage: Stage) -> None:
    stage.register("none", SessionIdentity(created_at=1))
    stage.register("empty", SessionIdentity(created_at=1, cwd=""))
    stage.run()
    assert [stage.calls[0][1][-5], stage.calls[0][1][-1]] == ["", "="]


def test_a_heartbeat_is_one_call_whatever_the_number_of_sessions(stage: Stage) -> None:
    for number in range(10_000):
        stage.register(f"s{number}")
    assert len(stage.run()) == math.ceil(10_000 / BATCH)
    for _ in range(5):
        assert stage.core.idle_s() == pytest.approx(2.0)
        stage.now += 2.0
        assert stage.run() == ["live_hold"]
        assert len(stage.calls[-1][1]) == 5, "the owner's key and nothing of any Session"


def test_sessions_are_renewed_well_before_they_expire_in_bounded_calls(stage: Stage) -> None:
    for number in range(1_000):
        stage.register(f"s{number}")
    stage.run()
    stage.now += keys.LIVE_TTL_S / 4
    assert stage.run() == ["live_hold"] * 4
    assert "take" not in stage.calls[-1][1]
    assert stage.calls[-1][1].count("keep") == 1_000 - 3 * BATCH


def test_a_server_that_forgot_the_owner_is_told_of_everything_again(stage: Stage) -> None:
    for number in range(300):
        stage.register(f"s{number}")
    stage.run()
    stage.known = False
    stage.now += 2.0
    assert stage.run() == ["live_hold"] * 3
    assert sum(arguments.count("keep") for _, arguments in stage.calls[-2:]) == 300


@pytest.mark.parametrize("who", ["keeper", "listener"])
def test_after_trouble_everything_is_told_again(stage: Stage, who: str) -> None:
    """The server may have restarted from an older state although the owner's key is there."""
    stage.settled()
    stage.now += 2.0
    if who == "keeper":
        assert stage.core.next_call() is not None
        stage.core.failed(LOST)
        stage.now += 1.0
    else:
        assert 0 < stage.core.deaf(LOST) <= 1
    stage.run()
    assert stage.calls[-1][1].count("keep") == 1


def test_a_server_out_of_reach_is_tried_less_and_less_but_every_second(stage: Stage) -> None:
    """Capped backoff: no call before its time, none is given up, the Session is registered in the end."""
    registration = stage.register()
    pauses = []
    for _ in range(12):
        assert stage.core.next_call() is not None
        stage.core.failed(LOST)
        assert stage.core.next_call() is None
        pauses.append(stage.core.idle_s())
        stage.now += pauses[-1] + 1e-6
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.05)
    assert pauses[-1] == pytest.approx(1.0)
    assert not is_set(registration.settled)
    stage.run()
    assert is_set(registration.settled)


def test_a_script_that_the_server_does_not_know_is_taught_with_the_same_call(stage: Stage) -> None:
    stage.register()
    by_digest = stage.core.next_call()
    assert by_digest is not None
    stage.core.failed(NoScriptError("NOSCRIPT"))
    by_source = stage.core.next_call()
    assert by_source is not None
    assert by_source.args == ("EVAL", _hold.source, *by_digest.args[2:])


def test_a_refusal_that_does_not_pass_is_told_at_once(stage: Stage) -> None:
    registration = stage.register()
    assert stage.core.next_call() is not None
    stage.core.failed(NoPermissionError("NOPERM"))
    assert isinstance(registration.error, QueueUnavailable)
    assert is_set(registration.settled)


def test_a_withdrawn_registration_is_taken_off_the_server(stage: Stage) -> None:
    """Its answer may have been lost: the server may know it."""
    registration = stage.register()
    assert stage.core.next_call() is not None
    stage.core.failed(LOST)
    assert "gone" in str(stage.core.withdraw(registration, 5.0))
    stage.now += 1.0
    assert stage.run() == ["live_leave"]
    assert keys.live("s") in stage.calls[-1][1]


def test_a_session_registered_again_is_not_taken_off(stage: Stage) -> None:
    stage.core.requests.close(stage.settled())
    stage.register()
    assert stage.run() == ["live_hold"]


def test_requests_during_a_flush_share_one_more(stage: Stage) -> None:
    """The first begins a flush; what comes meanwhile is served by one that begins after it came."""
    registration = stage.settled()
    requests = stage.core.requests
    assert stage.ask("a") is registration
    assert stage.ask("b") is None, "the flush that is due serves it"
    assert requests.begin(registration)
    assert stage.ask("c") is None
    assert stage.ask("d") is None
    assert requests.finish(registration, Outcome("flushed", 1))
    assert stage.answers() == {"a": "flushed", "b": "flushed"}
    assert requests.begin(registration)
    assert not requests.finish(registration, Outcome("failed"))
    assert stage.answers() == {"a": "flushed", "b": "flushed", "c": "failed", "d": "failed"}
    assert not requests.flushing


def test_who_gave_up_waiting_is_not_flushed_for(stage: Stage) -> None:
    registration = stage.settled()
    assert stage.ask("late", seconds=-1) is None
    assert stage.ask("short", seconds=1) is registration
    stage.now += 1.5
    assert not stage.core.requests.begin(registration)
    assert stage.answers() == {}
    assert stage.ask("next") is registration


def test_an_answer_that_nobody_waits_for_is_not_sent(stage: Stage) -> None:
    registration = stage.settled()
    stage.ask("a", seconds=1)
    stage.core.requests.begin(registration)
    stage.now += 1.5
    stage.core.requests.finish(registration, Outcome("flushed"))
    assert stage.answers() == {}


def test_another_life_and_an_unknown_session_are_detached(stage: Stage) -> None:
    """The registration of an unknown one is taken off first, so that the worker's next look does not find it."""
    stage.settled()
    assert stage.core.receive(stage.request("a", life=OTHER_LIFE)) is None
    assert stage.ask("b", "unknown") is None
    assert stage.run() == ["live_leave", "live_reply"]
    assert stage.calls[-2][1][2] == keys.live("unknown")
    assert stage.answers() == {"a": "detached", "b": "detached"}


def test_closing_a_session_answers_those_behind_the_running_flush_after_it(stage: Stage) -> None:
    """So the worker that asks again, or reads, does so when the flush is over."""
    registration = stage.settled()
    stage.ask("a")
    stage.core.requests.begin(registration)
    stage.ask("b")
    stage.core.requests.close(registration)
    stage.ask("c")
    assert not is_set(registration.ended)
    assert stage.answers() == {}
    assert not stage.core.requests.finish(registration, Outcome("flushed"))
    assert is_set(registration.ended)
    assert stage.answers() == {"a": "flushed", "b": "detached", "c": "detached"}
    assert "live_leave" in [name for name, _ in stage.calls]


def test_a_session_closed_before_its_due_flush_began_is_not_flushed(stage: Stage) -> None:
    registration = stage.settled()
    assert stage.ask("a") is registration
    stage.core.requests.close(registration)
    assert is_set(registration.ended)
    assert not stage.core.requests.begin(registration)
    assert stage.answers() == {"a": "detached"}


@pytest.mark.parametrize(("life", "due"), [(LIFE, True), (OTHER_LIFE, False)])
def test_the_last_registration_of_an_id_wins(stage: Stage, life: SessionIdentity, *, due: bool) -> None:
    """What waits goes over to it if it is the same life; the former handle is spent."""
    former = stage.settled()
    stage.ask("a")
    later = Registration("s", life, "flush", settled=threading.Event(), ended=threading.Event())
    assert stage.core.register(later) is due
    assert is_set(former.ended)
    stage.core.requests.close(former)
    assert stage.run()[0] == "live_hold"
    assert stage.core.requests.held == {"s": later}
    assert stage.answers() == ({} if due else {"a": "detached"})


def test_replacing_settles_a_registration_that_still_waits(stage: Stage) -> None:
    first, second = stage.register(), stage.register()
    assert is_set(first.settled)
    assert not is_set(second.settled)


def test_waiting_requests_are_bounded(stage: Stage) -> None:
    registration = stage.settled()
    for number in range(MOST_PENDING + 10):
        stage.ask(f"r{number}")
    assert len(registration.waiting) == MOST_PENDING


def test_unsent_answers_are_bounded_and_sent_in_bounded_calls(stage: Stage) -> None:
    for number in range(MOST_PENDING + 10):
        stage.ask(f"r{number}", "unknown")
    assert stage.run() == ["live_leave", *["live_reply"] * math.ceil(MOST_PENDING / BATCH)]
    assert len(stage.replies) == MOST_PENDING


def test_closing_waits_for_flushes_answers_leaves_and_ends(stage: Stage) -> None:
    flushing, idle = stage.settled("a"), stage.settled("b")
    stage.ask("x", "a")
    stage.core.requests.begin(flushing)
    stage.core.close()
    stage.run()
    assert is_set(idle.ended)
    assert not stage.core.finished
    with pytest.raises(ShuttingDown):
        stage.register("c")
    stage.core.requests.finish(flushing, Outcome("flushed", 1))
    assert stage.answers() == {"x": "flushed"}
    assert (stage.core.finished, stage.core.listening) == (True, False)


def test_closing_gives_up_a_server_that_does_not_answer(stage: Stage) -> None:
    stage.settled()
    stage.core.close()
    began = stage.now
    while not stage.core.finished:
        if stage.core.next_call() is not None:
            stage.core.failed(LOST)
        stage.now += stage.core.idle_s() + 1e-6
        assert stage.now < began + 2 * CLOSE_S


def test_closing_refuses_registrations_under_way(stage: Stage) -> None:
    registration = stage.register()
    stage.core.close()
    assert isinstance(registration.error, ShuttingDown)
    assert is_set(registration.settled)


@given(st.binary())
def test_malformed_requests_are_dropped(data: bytes) -> None:
    stage = Stage()
    stage.settled()
    assert stage.core.receive(data) is None
    assert stage.run() == []


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\xc0", lambda data: b"\x92" + data])
def test_almost_a_request_is_dropped(stage: Stage, change: object) -> None:
    stage.settled()
    assert callable(change)
    assert stage.core.receive(change(stage.request("a"))) is None
    assert stage.run() == []


@pytest.mark.parametrize("ttl", [math.nan, math.inf, -1, "6"])
def test_a_ttl_is_a_number_of_seconds(ttl: float) -> None:
    with pytest.raises(InvalidRequest):
        LiveCore[str]("me", ttl)
