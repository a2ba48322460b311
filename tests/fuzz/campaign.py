"""Damages real logs and holds the reader to its word."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from zstandard import ZstdDecompressor

from feedback.errors import FeedbackError, LogFailure
from persistence.session_log import LogView, SessionLogs
from tests.fuzz import mutations, oracle
from tests.unit.log_examples import write

FIXTURES = Path(__file__).parents[2].parent / "shared" / "fixtures"
ROW_CAP = 1 << 16
LONGEST_S = 20.0
"""No log of these sizes takes a thousandth of it: what does is a hang."""


class Seed(Struct, frozen=True):
    """A sound log: where it lies below its root, and what is in it."""

    place: Path
    session_id: str
    log: bytes
    rows: tuple[bytes, ...]

    @property
    def is_zstd(self) -> bool:
        return self.place.name.endswith(".zstd")


class Violation(AssertionError):
    """The reader broke its word; the message has what it takes to see it again."""


def seeds(home: Path) -> list[Seed]:
    """Logs to begin with: the writer's own, and the recorded corpus where it is at hand."""
    roots = []
    for compression in ("zstd", "none"):
        root = home / compression
        write(root, 4, compression)
        roots.append(root)
    if FIXTURES.is_dir():
        roots += sorted(path for kind in ("v0", "py", "vn") for path in (FIXTURES / kind).iterdir() if path.is_dir())
    return [seed for root in roots for seed in _seeds_in(root)]


def _seeds_in(root: Path) -> Iterator[Seed]:
    logs = SessionLogs(root)
    for entry in logs.sessions(limit=100):
        try:
            view = logs.inspect(entry.session_id)
        except LogFailure:
            continue
        log = entry.path.read_bytes()
        if view is not None and len(log) < 1 << 17:
            yield Seed(entry.path.relative_to(root), entry.session_id, log, _rows(entry.path, log))


def _rows(path: Path, log: bytes) -> tuple[bytes, ...]:
    text = log
    if path.name.endswith(".zstd"):
        text = ZstdDecompressor().stream_reader(log, read_across_frames=True).readall()
    return tuple(text.split(b"\n")[:-1])


def run(*, seed: int, cases: int | None = None, seconds: float | None = None) -> Counter[str]:
    """Damage logs until there were so many cases or the time is up; how often each answer was given.

    Raises:
        Violation: an untyped exception, a hang, an eligible message that the log does not hold, or an index that
            was believed over the file.
    """
    source = random.Random(seed)
    answers: Counter[str] = Counter()
    ends = None if seconds is None else time.monotonic() + seconds
    with TemporaryDirectory() as home:
        corpus = seeds(Path(home) / "seeds")
        number = 0
        while (cases is None or number < cases) and (ends is None or time.monotonic() < ends):
            sound = source.choice(corpus)
            with TemporaryDirectory(dir=home) as root:
                answers[_case(source, sound, Path(root), f"seed {seed}, case {number}")] += 1
            number += 1
    return answers


def _case(source: random.Random, sound: Seed, root: Path, name: str) -> str:
    """Read the sound log, damage it in place, read it again with the same reader and with a fresh one."""
    path = root / sound.place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sound.log)
    logs = SessionLogs(root, max_row_bytes=ROW_CAP)
    _answer(logs, sound.session_id, name)
    log = mutations.damaged(source, sound.log, sound.rows, is_zstd=sound.is_zstd)
    path.write_bytes(log)
    began = time.monotonic()
    seen = _answer(logs, sound.session_id, name)
    fresh = _answer(SessionLogs(root, max_row_bytes=ROW_CAP), sound.session_id, name)
    if time.monotonic() - began > LONGEST_S:
        raise Violation(f"{name}: reading took {time.monotonic() - began:.0f} s")
    if _essence(seen) != _essence(fresh):
        raise Violation(f"{name}: {_essence(seen)} from a reader that knew the log, {_essence(fresh)} from a fresh one")
    if isinstance(seen, LogView):
        held = oracle.messages(log, sound.session_id, is_zstd=sound.is_zstd)
        if invented := set(seen.message_ids) - held:
            raise Violation(f"{name}: {sorted(invented)} are eligible, and not in the log")
    return _essence(seen)[0]


def _answer(logs: SessionLogs, session_id: str, name: str) -> LogView | FeedbackError | None:
    try:
        view = logs.make_durable(session_id)
        for _ in logs.messages(session_id):
            pass
    except LogFailure as error:
        return error
    except BaseException as error:
        raise Violation(f"{name}: {type(error).__name__}: {error}") from error
    return view


def _essence(answer: LogView | FeedbackError | None) -> Sequence[str]:
    """What two readings of one file have to agree on."""
    match answer:
        case LogView():
            return ("torn" if answer.torn else "sound", str(answer.identity), str(answer.events), *answer.message_ids)
        case None:
            return ("no such Session",)
        case _:
            return (answer.code,)
