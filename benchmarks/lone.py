"""One put at a time, from the client's call to its result, across client, server, worker and projector."""

from pathlib import Path

from benchmarks.baselines import floor
from benchmarks.deployment import deployed
from benchmarks.figures import Figure, Target, compared, figure, tail
from benchmarks.measure import Prepared, Run, alternately, in_blocks
from benchmarks.puts import Rater
from benchmarks.sessions import append_turns, log_path, message_ids, session_ids, write_sessions

_UNIT = "µs"
_FLOOR = "floor"
_GROWING = "growing"


def lone_puts(run: Run) -> list[Figure]:
    """Lone puts against the floor: one SQLite FULL commit and three Redis round trips."""
    sessions, messages = session_ids(run.size(64, 4)), message_ids(16)
    with run.home() as home, deployed(Path(home)) as system, floor(system.redis, Path(home)) as lowest:
        write_sessions(Path(system.settings.sessions), sessions, len(messages))
        targets = [(session, message) for message in messages for session in sessions]
        rater = Rater(system.client, targets)
        for _ in targets:
            rater()
        log = _Growing(Path(system.settings.sessions), len(messages))
        after_growth = Prepared(log.append, Rater(system.client, [(_GROWING, message) for message in messages]))
        actions = (lowest, rater, rater.refuse, rater.keep, after_growth)
        rounds, each = run.size(20, 2), run.size(50, 5)
        base, put, conflict, kept, growing = in_blocks(actions, rounds=rounds, each=each)
        commit, round_trip = in_blocks((lowest.commit, lowest.round_trip), rounds=rounds, each=each)
        cold_base, cold_put = alternately((lowest, rater), rounds=rounds, each=each)
    return [
        figure(_FLOOR, _UNIT, base),
        figure("a part of it: one SQLite FULL commit", _UNIT, commit),
        figure("a part of it: one Redis round trip", _UNIT, round_trip),
        compared("put", _UNIT, put, _FLOOR, base, target=Target("at most", 1.8)),
        tail("put, 99th percentile", _UNIT, put, target=Target("at most", 5)),
        compared("put, a conflict", _UNIT, conflict, _FLOOR, base),
        compared("put, a no-op", _UNIT, kept, _FLOOR, base),
        compared("put right after its log grew", _UNIT, growing, _FLOOR, base),
        figure("floor, by turns with puts", _UNIT, cold_base),
        compared("put, by turns with the floor", _UNIT, cold_put, "floor, by turns with puts", cold_base),
    ]


class _Growing:
    """A log to which its host appends right before each put: the barrier reads and syncs what is new."""

    def __init__(self, root: Path, turns: int) -> None:
        write_sessions(root, [_GROWING], turns, projects=1)
        self._path = log_path(root, _GROWING, cwd="/home/bench/project-0")
        self._turn = turns

    def append(self) -> None:
        self._turn += 1
        append_turns(self._path, (self._turn,))
