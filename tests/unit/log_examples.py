"""Logs for the tests of reading and writing: made by the writer, then damaged by hand."""

from pathlib import Path
from typing import Literal

import zstandard

from persistence.session_log import LogView, LogWriter, SessionLogs
from persistence.session_log.events import Event, exchange, step_start, turn_start, user_message

SESSION, CREATED_AT, CWD = "session-1", 1_700_000_000_000, "/home/dev/project"
Compression = Literal["zstd", "none"]


def turn(number: int, answer: str = "yes") -> list[Event]:
    """A closed turn whose answer is the message `a<number>`."""
    return timed(exchange(number, "a question", answer, user_id=f"u{number}", assistant_id=f"a{number}"))


def open_turn(number: int) -> list[Event]:
    """A turn that has begun, without an answer yet."""
    return timed([turn_start(number), user_message(f"u{number}", "a question"), step_start(number)])


def timed(events: list[Event]) -> list[Event]:
    """The events at a fixed time, so that the bytes are the same each time."""
    return [{**event, "time": CREATED_AT + at} for at, event in enumerate(events)]


def writer(root: Path, compression: Compression = "zstd", session_id: str = SESSION) -> LogWriter:
    return LogWriter(root, session_id, created_at=CREATED_AT, cwd=CWD, compression=compression)


def write(root: Path, turns: int, compression: Compression = "zstd", session_id: str = SESSION) -> Path:
    """A log of so many closed turns, one batch each."""
    with writer(root, compression, session_id) as log:
        for number in range(1, turns + 1):
            log.append(turn(number))
        return log.path


def frame(text: bytes) -> bytes:
    """A frame as the writer makes them."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False).compressobj()
    return compressor.compress(text) + compressor.flush()


def bomb(plain_bytes: int) -> bytes:
    """A small frame that says one byte over and over: blocks of 128 KiB in 4 bytes each."""
    block = 128 << 10
    count = plain_bytes // block
    blocks = [((block << 3) | (1 << 1) | (at == count - 1)).to_bytes(3, "little") + b"x" for at in range(count)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


def seen(logs: SessionLogs, session_id: str = SESSION) -> LogView:
    """What the reader sees of a Session that is there."""
    view = logs.inspect(session_id)
    assert view is not None
    return view


def moved_over(path: Path) -> None:
    """Another file takes the log's name: its second answer has another id."""
    other = path.with_name("new")
    other.write_bytes(path.read_bytes().replace(b'"a2"', b'"b2"'))
    other.rename(path)
