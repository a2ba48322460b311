"""What a reader of logs takes: one of 1 GB, a frame without end, many Sessions. Each in a process of its own."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.figures import Figure, Target, figure
from benchmarks.measure import Run, memory_mb
from benchmarks.sessions import log_path, session_ids, write_large, write_sessions
from feedback import RowInvalid
from persistence.session_log import SessionLogs

T = TypeVar("T")
R = TypeVar("R")

_MB = 10**6
_BLOCK = 128 * 1024


class _Peak(NamedTuple):
    """Memory above idle in MB, and how the reading ended."""

    above_idle: float
    ending: str


def reading_memory(run: Run) -> list[Figure]:
    """Memory above idle: reading a log of 1 GB, a frame of a few kB that expands without end, 100,000 Sessions."""
    size, sessions = run.size(1000, 5) * _MB, run.size(100_000, 200)
    with run.home() as home:
        root = Path(home)
        write_sessions(root, ["idle"], 3)
        write_large(root, "raw", size, compressed=False)
        write_large(root, "zstd", size, compressed=True)
        write_sessions(root, ["bomb"], 1, projects=1)
        _append_bomb(log_path(root, "bomb", cwd="/home/bench/project-0"), run.size(2**20, 2**16))
        raw, packed, bomb = (_in_own_process(_peak_of_reading, root, session) for session in ("raw", "zstd", "bomb"))
        write_sessions(root / "many", session_ids(sessions), 3, projects=10)
        remembered = _in_own_process(_memory_of_many, root / "many", sessions)
    assert (raw.ending, packed.ending) == ("read", "read"), (raw, packed)
    assert bomb.ending == RowInvalid.__name__, bomb
    under_100 = Target("at most", 100, "value")
    name = f"log of {size // _MB:,} MB"
    return [
        figure(f"{name}, raw", "MB", [[raw.above_idle]], target=under_100),
        figure(f"{name}, Zstandard", "MB", [[packed.above_idle]], target=under_100),
        figure(f"endless frame, until {bomb.ending} at the cap of 64 MiB", "MB", [[bomb.above_idle]]),
        figure(f"{sessions:,} Sessions of three answers, all remembered", "MB", [[remembered]]),
    ]


def _in_own_process(measure: Callable[[Path, T], R], root: Path, what: T) -> R:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, root, what).result()


def _peak_of_reading(root: Path, session: str) -> _Peak:
    logs = SessionLogs(root)
    assert logs.inspect("idle") is not None
    # Linux counts the peak anew from here on.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    idle = memory_mb("self", "VmRSS")
    try:
        logs.inspect(session)
    except RowInvalid as error:
        return _Peak(memory_mb("self", "VmHWM") - idle, type(error).__name__)
    return _Peak(memory_mb("self", "VmHWM") - idle, "read")


def _memory_of_many(root: Path, number: int) -> float:
    """What so many Sessions leave behind in a process that has read each of them once."""
    logs, sessions = SessionLogs(root), session_ids(number)
    assert logs.inspect(sessions[-1]) is not None
    idle = memory_mb("self", "VmRSS")
    for session in sessions:
        assert logs.inspect(session) is not None
    used = memory_mb("self", "VmRSS") - idle
    assert all(logs.peek(session) is not None for session in sessions)
    return used


def _append_bomb(path: Path, size: int) -> None:
    """One frame of run-length blocks: four bytes of file for 128 KiB of text."""
    # No content size, no checksum; a window of 1 MiB.
    header = b"\x28\xb5\x2f\xfd\x00\x50"
    block = (_BLOCK << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (_BLOCK << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"a"
    with path.open("ab") as log:
        log.write(header + block * (size // len(block)) + last)
