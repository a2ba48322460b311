"""A demo that looks like work: Sessions in several projects, of several models, with ratings over five weeks."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from feedback import FeedbackClient
from feedback.connection import connect
from feedback.model import Rating
from feedback.results import Ok
from persistence.session_log import LogWriter
from persistence.session_log.events import (
    Event,
    assistant_message,
    step_end,
    step_start,
    turn_end,
    turn_start,
    user_message,
)

NOW = 1_793_450_400_000
"""2026-10-31 12:40 UTC: the moment at which the demo is looked at."""
_MINUTE, _DAY = 60_000, 24 * 3600 * 1000
_BETWEEN_ROWS = _MINUTE // 6


class Tool(Struct, forbid_unknown_fields=True):
    """A call, its `arguments` as JSON text, and what the tool answered."""

    name: str
    arguments: str
    result: str
    failed: bool = False


class Step(Struct, forbid_unknown_fields=True):
    """One call of the model: what it thought, said and ran."""

    text: str
    thought: str = ""
    tool: tuple[Tool, ...] = ()


class Turn(Struct, forbid_unknown_fields=True):
    """What somebody asked; the `answer`, or the steps that led to it."""

    prompt: str
    answer: str = ""
    step: tuple[Step, ...] = ()


class Demo(Struct, forbid_unknown_fields=True):
    """One Session, begun `days` before NOW."""

    id: str
    cwd: str
    model: str
    days: float
    turn: tuple[Turn, ...]
    title: str = ""
    parent: str | None = None
    subagent: bool = False

    @property
    def begun(self) -> int:
        """In milliseconds since the Unix epoch."""
        return NOW - round(self.days * _DAY)


class Rated(Struct, forbid_unknown_fields=True):
    """A rating of the answer with this number (from 1), `minutes` after the Session began."""

    session: str
    answer: int
    rating: Rating
    actor: str
    note: str | None = None
    minutes: int = 30


class _Document(Struct, forbid_unknown_fields=True):
    session: tuple[Demo, ...]
    rating: tuple[Rated, ...]


_TEXT = Path(__file__).with_name("demo.toml").read_text(encoding="utf-8")
DEMO = msgspec.convert(tomllib.loads(_TEXT), _Document)


class Clock:
    """What the system takes for now, in milliseconds since the Unix epoch."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def write_demo(root: Path) -> None:
    """Every Session's log."""
    for demo in DEMO.session:
        with LogWriter(
            root,
            demo.id,
            created_at=demo.begun,
            cwd=demo.cwd,
            parent_session=demo.parent,
            origin="subagent" if demo.subagent else None,
        ) as log:
            log.append([{**event, "time": demo.begun + at * _BETWEEN_ROWS} for at, event in enumerate(_events(demo))])


def rate_demo(url: str, clock: Clock) -> None:
    """Every rating, at its own time, through a system that goes by `clock`."""
    begun = {demo.id: demo.begun for demo in DEMO.session}
    with connect(url) as redis, FeedbackClient(redis, clock_ms=clock) as client:
        for rated in sorted(DEMO.rating, key=lambda one: begun[one.session] + one.minutes * _MINUTE):
            clock.now = begun[rated.session] + rated.minutes * _MINUTE
            answer = f"answer-{rated.answer}"
            result = client.put(rated.session, answer, rated.rating, note=rated.note, actor=rated.actor)
            assert isinstance(result, Ok), result
    clock.now = NOW


def _events(demo: Demo) -> Iterator[Event]:
    number = 0
    for turn, asked in enumerate(demo.turn, start=1):
        yield turn_start(turn)
        yield user_message(f"question-{turn}", asked.prompt)
        if turn == 1 and demo.title:
            yield {"type": "session/title", "data": {"title": demo.title}}
        for at, step in enumerate(asked.step or (Step(asked.answer),), start=1):
            number += 1
            yield step_start(turn, at)
            yield answer(f"answer-{number}", step, demo.model, turn=turn, step=at)
            for place, tool in enumerate(step.tool):
                yield tool_result(f"call-{number}-{place}", tool, turn=turn, step=at)
            yield step_end(turn, at)
        yield turn_end(turn)


def answer(message_id: str, said: Step, model: str, *, turn: int = 1, step: int = 1) -> Event:
    """An assistant's message; its tool calls are `call-<number of the message>-<place>`."""
    number = message_id.rpartition("-")[2]
    thought = [{"type": "reasoning", "text": said.thought}] if said.thought else []
    calls = [
        {"type": "tool-call", "id": f"call-{number}-{place}", "name": tool.name, "arguments": tool.arguments}
        for place, tool in enumerate(said.tool)
    ]
    event = assistant_message(message_id, said.text, turn=turn, step=step)
    data = event["data"]
    assert isinstance(data, dict)
    message = data["message"]
    message |= {
        "content": [*thought, *message["content"], *calls],
        "source": {"kind": "model", "provider": "aviary", "model": model},
    }
    return event


def tool_result(call_id: str, tool: Tool, *, turn: int = 1, step: int = 1) -> Event:
    """What the tool answered."""
    text = [{"type": "text", "text": tool.result}]
    block = {"type": "tool-result", "toolCallId": call_id, "isError": tool.failed, "content": text}
    message = {"id": f"result-{call_id}", "role": "tool", "content": [block], "source": {"kind": "tool"}}
    return {"type": "tool/result", "data": {"turn": turn, "step": step, "message": message}, "surfaceOp": "append"}
