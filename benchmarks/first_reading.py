"""The first reading of a log, against the least that any reader of it has to do."""

import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import zstandard

from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.measure import Run, alternately, rounds_of
from benchmarks.sessions import CREATED_AT, ROWS_PER_TURN, rows, write_log
from persistence.session_log import SessionLogs, jsontext
from persistence.session_log.events import exchange

_CHUNK_BYTES = 2**20
_MB = 10**6
_TURN_BYTES = 800
"""What the six rows of a turn take, the text of its answer aside."""
_DELTAS = 100
"""How many pieces a streamed answer came in."""


class _Kind(NamedTuple):
    """How long the rows of a log are on average, how many turns a batch of it has, whether its answers are streamed."""

    name: str
    row_bytes: int
    turns: int = 1
    streamed: bool = False


_KINDS = (
    _Kind("135 B", 135),
    _Kind("280 B", 280),
    _Kind("1 kB", 1000),
    _Kind("4 kB", 4000),
    _Kind("40 kB", 40_000),
    _Kind("135 B, 100 turns a batch", 135, turns=100),
    _Kind("1 kB, streamed", 1000, streamed=True),
)


def first_reading(run: Run) -> list[Figure]:
    """The first reading of logs, by the mean length of their rows, against decompressing and splitting alone."""
    figures = []
    with run.home() as home:
        for compressed in (True, False):
            for number, kind in enumerate(_KINDS):
                session = f"{'zstd' if compressed else 'raw'}-{number}"
                batches = list(_batches(kind, run.size(20, 1) * _MB))
                path = write_log(Path(home), session, batches, compressed=compressed)
                actions = partial(_split, path), partial(_read_first, Path(home), session)
                text = sum(map(len, batches)) / _MB
                split, read = (
                    rounds_of(taken, lambda us: text / us * 10**6)  # noqa: B023 - called at once
                    for taken in alternately(actions, rounds=run.size(9, 2), each=1)
                )
                least = f"{'zstd' if compressed else 'raw'}, {kind.name}"
                figures += [
                    figure(least, "MB/s", split),
                    compared("  read", "MB/s", read, "split", split, target=Target("at least", 0.5)),
                ]
    return figures


def _read_first(root: Path, session: str) -> None:
    assert SessionLogs(root).inspect(session) is not None


def _split(path: Path) -> int:
    """Lines of a log, and nothing made of them."""
    lines = 0
    with path.open("rb", buffering=0) as log:
        packed = zstandard.ZstdDecompressor().stream_reader(log, read_across_frames=True, closefd=False)
        read = packed.read if path.suffix == ".zstd" else log.read
        rest = b""
        while chunk := read(_CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(b"\n")
            lines += len(whole)
    return lines


def _batches(kind: _Kind, most_bytes: int) -> Iterator[bytes]:
    """Batches of whole turns, until they are so many bytes."""
    text_bytes = 0
    answer_bytes = max(2 * _DELTAS if kind.streamed else 2, kind.row_bytes * ROWS_PER_TURN - _TURN_BYTES)
    for first in count(1, kind.turns):
        if text_bytes >= most_bytes:
            return
        turns, answer = range(first, first + kind.turns), os.urandom(answer_bytes // 2).hex()
        batch = b"".join(_streamed(turns, answer) if kind.streamed else rows(turns, answer))
        text_bytes += len(batch)
        yield batch


def _streamed(turns: range, answer: str) -> Iterator[bytes]:
    """As `rows`, and before each answer the pieces that it came in, as one packed row (FORMATS section 5)."""
    step = len(answer) // _DELTAS
    pieces = [answer[at * step : (at + 1) * step] for at in range(_DELTAS)]
    for turn in turns:
        seq = (turn - 1) * (ROWS_PER_TURN + _DELTAS)
        data = {"turn": turn, "step": 1, "index": 0, "dt": [20] * (_DELTAS - 1), "texts": pieces}
        for event in exchange(turn, "Please?", answer, user_id=f"question-{turn}", assistant_id=f"answer-{turn}"):
            if event["type"] == "assistant/message":
                packed = {"type": "text-chunks", "seq0": seq, "time0": CREATED_AT + seq, "data": data}
                yield jsontext.encode(packed) + b"\n"
                seq += _DELTAS
            row = {"type": event["type"], "seq": seq, "time": CREATED_AT + seq} | event
            yield jsontext.encode(row) + b"\n"
            seq += 1
