"""The durability barrier by itself: on a log that did not change, and on one that grew."""

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.measure import Prepared, Run, alternately, rounds_of
from benchmarks.sessions import ROWS_PER_TURN, append_turns, log_path, session_ids, write_large, write_sessions
from persistence.session_log import SessionLogs

_MB = 10**6
_FLAT = Target("at most", 1.2)


def unchanged(run: Run) -> list[Figure]:
    """The barrier on logs that did not change: 1 MB against 500 MB, 1,000 Sessions in the catalog against 100,000."""
    small, large = _MB, run.size(500, 3) * _MB
    few, many = run.size(1000, 20), run.size(100_000, 200)
    rounds, each = run.size(30, 3), run.size(30, 5)
    with run.home() as home:
        roots = {name: Path(home, name) for name in ("large logs", "few", "many")}
        write_large(roots["large logs"], "small", small, compressed=True)
        write_large(roots["large logs"], "large", large, compressed=True)
        write_sessions(roots["few"], session_ids(few), 3, projects=10)
        write_sessions(roots["many"], session_ids(many), 3, projects=10)
        logs = {name: SessionLogs(root) for name, root in roots.items()}
        known = [
            _barrier(logs["large logs"], repeat("small")),
            _barrier(logs["large logs"], repeat("large")),
            _barrier(logs["few"], repeat("session-7")),
            _barrier(logs["many"], repeat("session-7")),
        ]
        for action in known:
            action()
        of_small, of_large, of_few, of_many = alternately(known, rounds=rounds, each=each, calls=20)
        new = [_barrier(logs[name], iter(session_ids(few)[10:])) for name in ("few", "many")]
        first_few, first_many = alternately(new, rounds=run.size(15, 2), each=run.size(50, 4))
    sizes = f"log of {small // _MB} MB", f"log of {large // _MB} MB"
    catalogs = f"catalog of {few:,}", f"catalog of {many:,}"
    return [
        figure(sizes[0], "µs", of_small),
        compared(sizes[1], "µs", of_large, sizes[0], of_small, target=_FLAT),
        figure(catalogs[0], "µs", of_few),
        compared(catalogs[1], "µs", of_many, catalogs[0], of_few, target=_FLAT),
        figure(f"first reading, {catalogs[0]}", "µs", first_few),
        compared(f"first reading, {catalogs[1]}", "µs", first_many, f"first reading, {catalogs[0]}", first_few),
    ]


def grown(run: Run) -> list[Figure]:
    """The barrier on a log that grew: by 10 times as much, and at the end of a large log instead of a small one."""
    large = run.size(500, 3) * _MB
    turns = run.size(200, 20)
    with run.home() as home:
        root = Path(home)
        write_large(root, "small", _MB, compressed=True)
        write_large(root, "large", large, compressed=True)
        logs = SessionLogs(root)
        at_small, at_large = (_Grower(logs, root, session) for session in ("small", "large"))
        rounds, each = run.size(10, 2), run.size(10, 2)
        small, big = alternately([at_small.by(turns), at_large.by(turns)], rounds=rounds, each=each)
        single, tenfold = alternately([at_small.by(turns), at_small.by(10 * turns)], rounds=rounds, each=each)
        tenth = rounds_of(tenfold, lambda taken: taken / 10)
    rows = ROWS_PER_TURN * turns
    name = f"{rows} rows more, log of 1 MB"
    return [
        figure(name, "µs", small),
        compared(f"{rows} rows more, log of {large // _MB} MB", "µs", big, name, small, target=_FLAT),
        compared(f"a tenth of {10 * rows} rows more", "µs", tenth, name, single, target=_FLAT),
    ]


def _barrier(logs: SessionLogs, sessions: Iterator[str]) -> Callable[[], None]:
    def barrier() -> None:
        assert logs.make_durable(next(sessions)) is not None

    return barrier


class _Grower:
    """One log that grows. Appending is the host's work, not the barrier's: it is done before, into the page cache."""

    def __init__(self, logs: SessionLogs, root: Path, session: str) -> None:
        view = logs.make_durable(session)
        assert view is not None
        self._path = log_path(root, session)
        self._next_turn = view.events // ROWS_PER_TURN + 1
        self._barrier = _barrier(logs, repeat(session))

    def by(self, turns: int) -> Prepared:
        """The barrier on the log when it has grown by so many turns."""
        return Prepared(lambda: self._append(turns), self._barrier)

    def _append(self, turns: int) -> None:
        append_turns(self._path, range(self._next_turn, self._next_turn + turns))
        self._next_turn += turns
