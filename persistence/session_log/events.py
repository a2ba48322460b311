"""Events as hosts append them to format 0 logs, for the demo, tests and benchmarks (FORMATS sections 4 and 6).

Each function gives one event without `seq` and `time`: `LogWriter.append` adds those.
"""

from collections.abc import Mapping, Sequence

Event = dict[str, object]


def turn_start(turn: int) -> Event:
    """A turn begins: everything up to its `turn_end` belongs to one request of the user."""
    return {"type": "turn/start", "data": {"turn": turn}}


def turn_end(turn: int, reason: str = "completed") -> Event:
    """A turn is closed; from here on its rows are committed, never a torn tail."""
    return {"type": "turn/end", "data": {"turn": turn, "reason": {"kind": reason}}}


def step_start(turn: int, step: int = 1) -> Event:
    """One call of the model begins."""
    return {"type": "step/start", "data": {"turn": turn, "step": step}}


def step_end(turn: int, step: int = 1) -> Event:
    """One call of the model is over."""
    return {"type": "step/end", "data": {"turn": turn, "step": step}}


def user_message(message_id: str, text: str) -> Event:
    """What the user wrote."""
    message = {"id": message_id, "role": "user", "content": [_text(text)], "source": {"kind": "user"}}
    return {"type": "user/message", "data": message, "surfaceOp": "append"}


def assistant_message(
    message_id: str,
    text: str | None,
    *,
    turn: int = 1,
    step: int = 1,
    content: Sequence[Mapping[str, object]] = (),
    usage: Mapping[str, int] | None = None,
    replaces: tuple[int, int] | None = None,
    sources: Sequence[int] | None = None,
) -> Event:
    """What the model answered: one text block, then `content`.

    With neither (`text` None) it only carries usage, and is not eligible for feedback; nor is
    one that `replaces` the surface from one seq to another.
    """
    blocks = ([] if text is None else [_text(text)]) + [dict(block) for block in content]
    source = {"kind": "model", "provider": "example", "model": "example-1"}
    message = {"id": message_id, "role": "assistant", "content": blocks, "source": source}
    data: Event = {"turn": turn, "step": step, "message": message}
    if usage is not None:
        data["usage"] = dict(usage)
    event: Event = {"type": "assistant/message", "data": data}
    if sources is not None or replaces is not None:
        event["sourceEventSeqs"] = list(sources if sources is not None else replaces or ())
    event["surfaceOp"] = "append" if replaces is None else {"op": "replace", "start": replaces[0], "end": replaces[1]}
    return event


def empty_usage(message_id: str, *, turn: int = 1, step: int = 1) -> Event:
    """The record that a call leaves which cost tokens and answered nothing."""
    return assistant_message(message_id, None, turn=turn, step=step, usage={"inputTokens": 9, "outputTokens": 0})


def exchange(turn: int, question: str, answer: str, *, user_id: str, assistant_id: str) -> list[Event]:
    """A whole turn: a question, one model call, its answer."""
    return [
        turn_start(turn),
        user_message(user_id, question),
        step_start(turn),
        assistant_message(assistant_id, answer, turn=turn),
        step_end(turn),
        turn_end(turn),
    ]


def _text(text: str) -> Event:
    return {"type": "text", "text": text}
