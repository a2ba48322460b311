"""Where a Session's log lies under the root (FORMATS sections 1 and 2).

`<root>/<project directory>/<session segment>/<log name>`. Both directory names are
made from text that others chose, so every unit that could steer a path is escaped
here and nowhere else. All walking is over UTF-16 code units, as the original does.
"""

import re
from typing import NamedTuple

NO_CWD = "_no-cwd"
LOCK_NAME = "session.lock"

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_SEPARATORS = re.compile(r"[/\\:]+")
_ESCAPE = re.compile(r"~([0-9A-F]{4})")
_LOG_NAME = re.compile(r"session(?:\.v([1-9][0-9]{0,15}))?\.jsonl(\.zstd)?", re.ASCII)
_MAX_GENERATION = 2**53 - 1
_MAX_SLUG_UNITS = 251


class LogName(NamedTuple):
    """A canonical log file name: which generation, and whether it is Zstandard."""

    generation: int
    compressed: bool

    def __str__(self) -> str:
        generation = f".v{self.generation}" if self.generation else ""
        return f"session{generation}.jsonl{'.zstd' if self.compressed else ''}"


def parse_log_name(name: str) -> LogName | None:
    """The generation that a file name stands for, or None when it is no log name (FORMATS section 2)."""
    match = _LOG_NAME.fullmatch(name)
    if match is None:
        return None
    generation = int(match[1] or 0)
    return LogName(generation, match[2] is not None) if generation <= _MAX_GENERATION else None


def session_segment(session_id: str) -> str:
    """The directory name of a Session: injective, case-sensitive, never `.` or `..`.

    Raises ValueError for the empty id, which names nothing.
    """
    if not session_id:
        raise ValueError("an empty Session id has no directory")
    if session_id in {".", ".."}:
        return "~002E" * len(session_id)
    return _escaped(session_id)


def session_id_of(segment: str) -> str | None:
    """The Session id that a directory name stands for, or None when no id maps to it."""
    units = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), segment)
    session_id = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if not session_id or session_segment(session_id) != segment:
        return None
    return session_id


def project_dir(cwd: str | None) -> str:
    """The directory of all Sessions of one working directory. Lossy: different `cwd`s may share it.

    Raises ValueError for an empty `cwd`, which cannot name one.
    """
    if cwd is None:
        return NO_CWD
    if not cwd:
        raise ValueError("an empty cwd has no project directory")
    slug = "-".join(_escaped(part) for part in _SEPARATORS.split(cwd))
    return f"--{(slug.lstrip('-') or 'root')[:_MAX_SLUG_UNITS]}--"


def _escaped(text: str) -> str:
    return "".join(char if char in _SAFE else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"~{units[at : at + 4]}" for at in range(0, len(units), 4))
