"""Where the time of a lone put goes: its way through client, server and worker, as clocks in these processes saw it."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
from msgspec import Struct

from benchmarks.baselines import floor
from benchmarks.deployment import deployed
from benchmarks.figures import Figure, compared, figure
from benchmarks.measure import Run, in_blocks
from benchmarks.puts import Rater
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback.lines import Lines

_UNIT = "µs"


class _Round(Struct, frozen=True):
    """When the worker took its steps of one round, in monotonic nanoseconds (`benchmarks.timed_worker`)."""

    claimed: int
    processing: int
    loading: int
    deciding: int
    applying: int
    applied: int
    committed: int
    acknowledging: int


class _Put(Struct, frozen=True):
    """When the client was called, sent the command, received the answer, and returned."""

    called: int
    enqueueing: int
    answered: int
    returned: int


def way(run: Run) -> list[Figure]:
    """The steps of a lone put one after the other, and the floor."""
    sessions, messages = session_ids(run.size(64, 4)), message_ids(16)
    with run.home() as home:
        notes = Path(home) / "rounds.jsonl"
        with deployed(Path(home), timed=notes) as system, floor(system.redis, Path(home)) as lowest:
            write_sessions(Path(system.settings.sessions), sessions, len(messages))
            rater = Rater(system.client, [(session, message) for message in messages for session in sessions])
            for _ in range(len(sessions) * len(messages)):
                rater()
            puts: list[_Put] = []
            actions = (lowest, lambda: puts.append(_timed(rater)))
            base, total = in_blocks(actions, rounds=run.size(30, 2), each=run.size(20, 5))
        decoder = msgspec.json.Decoder(_Round)
        rounds = [decoder.decode(line) for line in notes.read_bytes().splitlines() if b'"claimed"' in line]
    steps: dict[str, list[float]] = {}
    for put, of_worker in _matched(puts, rounds):
        for name, taken in _steps(put, of_worker):
            steps.setdefault(name, []).append(taken / 1000)
    return [
        *(figure(name, _UNIT, [taken]) for name, taken in steps.items()),
        figure("floor", _UNIT, base),
        compared("put, with all these clocks", _UNIT, total, "floor", base),
    ]


def _timed(rater: Rater) -> _Put:
    """One put, with the client's two round trips timed."""
    trips: list[int] = []
    send = Lines.send

    def timed(lines: Lines, *commands: tuple[object, ...]) -> list[object]:
        trips.append(time.monotonic_ns())
        replies = send(lines, *commands)
        trips.append(time.monotonic_ns())
        return replies

    with patch.object(Lines, "send", timed):
        called = time.monotonic_ns()
        rater()
        returned = time.monotonic_ns()
    return _Put(called, trips[0], trips[-1], returned)


def _matched(puts: Sequence[_Put], rounds: Sequence[_Round]) -> Iterator[tuple[_Put, _Round]]:
    """Each put with the round in which it was committed."""
    remaining = iter(rounds)
    for put in puts:
        for of_worker in remaining:
            if of_worker.processing > put.called:
                if of_worker.processing < put.returned:
                    yield put, of_worker
                break


def _steps(put: _Put, of_worker: _Round) -> Iterator[tuple[str, int]]:
    moments = (
        ("client: check, encode", put.enqueueing),
        ("enqueue script, ring, claim script: sent until the worker has it", of_worker.claimed),
        ("worker: read the claim, begin the round", of_worker.processing),
        ("barrier, begin, fence", of_worker.loading),
        ("load", of_worker.deciding),
        ("decide", of_worker.applying),
        ("apply", of_worker.applied),
        ("commit: one sync", of_worker.committed),
        ("settle, write the acknowledgement", of_worker.acknowledging),
        ("finish script: sent until the client has the answer", put.answered),
        ("client: read the answer", put.returned),
    )
    since = put.called
    for name, moment in moments:
        yield name, moment - since
        since = moment
