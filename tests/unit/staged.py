"""The client's flows without a server: the test answers each step, and the clock goes on by what steps ask for."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from feedback import asking, calls, flows
from feedback.calls import Blocking, Call, Flow
from feedback.flows import Flows
from feedback.requests import Put

T = TypeVar("T")
Args = tuple[Any, ...]
Server = Callable[[Args], Any]
"""What a command is answered with; an exception is thrown into the flow."""

NOW_MS = 1_790_000_000_000
TOPOLOGY = [b"1", b"4", b"8", None]
# Where the script's commands begin among the arguments, and how many each has (feedback/scripts/enqueue.lua).
_FIRST, _FIELDS = 17, 6
LOST = RedisConnectionError("connection lost")


class Clock:
    """Takes the place of the module `time` in `feedback.flows` and `feedback.calls`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return NOW_MS * 1_000_000


class Stage:
    """One client's flows, and what they asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(flows, "time", self.clock)
        monkeypatch.setattr(calls, "time", self.clock)
        monkeypatch.setattr(asking, "time", self.clock)
        self.flows = Flows(clock_ms=lambda: NOW_MS)
        self.calls: list[Args] = []
        self.slept_s = 0.0

    def deadline(self, seconds: float) -> float:
        return self.clock.now_s + seconds

    def run(self, flow: Flow[T], server: Server) -> T:
        """Drive a flow to its end."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Blocking):
                    step = flow.send(step.work())
                    continue
                if not isinstance(step, Call):
                    self.slept_s += step.seconds
                    self.clock.now_s += step.seconds
                    step = next(flow)
                    continue
                replies = [self._reply(command, server) for command in (step.args, *step.then)]
                failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
                if failure is not None:
                    step = flow.throw(failure)
                else:
                    step = flow.send(replies if step.then else replies[0])
        except StopIteration as end:
            value: T = end.value
            return value

    def _reply(self, args: Args, server: Server) -> Any:
        self.calls.append(args)
        reply = server(args)
        if reply is None:
            self.clock.now_s += asked_to_block(args)
        return reply

    def names(self) -> list[str]:
        """The commands that were sent."""
        return [args[0] for args in self.calls]

    def connect(self) -> None:
        """The server answers once, and the topology is known."""
        self.run(self.flows.submit([put("s")], self.deadline(1)), serving)
        self.calls.clear()


def asked_to_block(args: Args) -> float:
    """How long a command may stay unanswered."""
    match args:
        case ("XREAD", "BLOCK", milliseconds, *_):
            assert milliseconds > 0, "0 would block for ever"
            return float(milliseconds) / 1000
        case ("BLPOP", _, seconds):
            assert float(seconds) > 0, "0 would block for ever"
            return float(seconds)
        case _:
            return 0.0


def serving(args: Args) -> Any:
    """A server with a topology, which takes every command and query."""
    match args[0]:
        case "HMGET":
            return TOPOLOGY
        case "EVALSHA" | "EVAL":
            return [b"enqueued"] * (len(enqueued(args)))
        case _:
            raise AssertionError(args)


def enqueued(args: Args) -> list[tuple[str, int]]:
    """Command ids and partitions in a call of the enqueueing script."""
    return list(zip(args[_FIRST::_FIELDS], args[_FIRST + 1 :: _FIELDS], strict=True))


def put(session_id: str, **members: Any) -> Put:
    return Put(**({"session_id": session_id, "message_id": "m", "rating": "positive"} | members))
