"""Session logs in numbers: written without the syncs that a host makes, then synced at once."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import zstandard

from persistence.session_log import jsontext
from persistence.session_log.events import exchange
from persistence.session_log.layout import LogName, project_dir, session_segment

CREATED_AT = 1_790_000_000_000
ROWS_PER_TURN = 6
_SESSIONS_PER_PROJECT = 100
_BLOCK_BYTES = 8 * 2**20
_compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False)


def session_ids(number: int) -> list[str]:
    return [f"session-{index}" for index in range(number)]


def message_ids(number: int) -> list[str]:
    return [f"answer-{turn}" for turn in range(1, number + 1)]


def write_sessions(root: Path, sessions: Sequence[str], messages: int, *, projects: int | None = None) -> None:
    """One log for each Session, with so many answers (`message_ids`); spread over working directories."""
    body = _frame(b"".join(rows(range(1, messages + 1))))
    projects = projects or max(1, len(sessions) // _SESSIONS_PER_PROJECT)
    for index, session_id in enumerate(sessions):
        cwd = f"/home/bench/project-{index % projects}"
        log_path(root, session_id, cwd=cwd, make=True).write_bytes(_frame(_header(session_id, cwd)) + body)
    os.sync()


def write_large(root: Path, session_id: str, size: int, *, compressed: bool, answer_bytes: int = 4000) -> int:
    """One log of at least `size` bytes on the disk; how many bytes of text it holds behind its header.

    Answers are random hexadecimal digits, so Zstandard halves them.
    """
    path = log_path(root, session_id, compressed=compressed, make=True)
    text_bytes = turn = 0
    with path.open("wb", buffering=_BLOCK_BYTES) as log:
        header = _header(session_id, "/home/bench/large")
        log.write(_frame(header) if compressed else header)
        while log.tell() < size:
            turn += 1
            batch = b"".join(rows((turn,), os.urandom(answer_bytes // 2).hex()))
            text_bytes += len(batch)
            log.write(_frame(batch) if compressed else batch)
    os.sync()
    return text_bytes


def write_log(root: Path, session_id: str, batches: Iterable[bytes], *, compressed: bool) -> Path:
    """One log of these batches of lines, each a frame of its own if `compressed`."""
    path = log_path(root, session_id, compressed=compressed, make=True)
    with path.open("wb", buffering=_BLOCK_BYTES) as log:
        for batch in chain([_header(session_id, "/home/bench/large")], batches):
            log.write(_frame(batch) if compressed else batch)
    os.sync()
    return path


def log_path(
    root: Path, session_id: str, *, cwd: str = "/home/bench/large", compressed: bool = True, make: bool = False
) -> Path:
    """Where a Session's log lies; with `make`, in a directory that is there."""
    directory = root / project_dir(cwd) / session_segment(session_id)
    if make:
        directory.mkdir(parents=True, exist_ok=True)
    return directory / str(LogName(0, compressed))


def rows(turns: Sequence[int], answer: str = "Here you are.") -> Iterator[bytes]:
    """The lines of whole turns, the first of which may be any: six rows each, seqs as they follow from that."""
    for turn in turns:
        events = exchange(turn, "Please?", answer, user_id=f"question-{turn}", assistant_id=f"answer-{turn}")
        first = (turn - 1) * ROWS_PER_TURN
        for seq, event in enumerate(events, start=first):
            row = {"type": event["type"], "seq": seq, "time": CREATED_AT + seq} | event
            yield jsontext.encode(row) + b"\n"


def append_turns(path: Path, turns: Sequence[int], *, compressed: bool = True) -> None:
    """Make a log grow by these turns, as one batch."""
    batch = b"".join(rows(turns))
    with path.open("ab") as log:
        log.write(_frame(batch) if compressed else batch)


def _frame(text: bytes) -> bytes:
    return _compressor.compress(text)


def _header(session_id: str, cwd: str) -> bytes:
    header = {
        "type": "session",
        "version": 0,
        "id": session_id,
        "createdAt": CREATED_AT,
        "cwd": cwd,
        "delegationDepth": 0,
    }
    return jsontext.encode(header) + b"\n"
