"""Structured logs on stderr: one line an event, as `key=value` pairs or as JSON.

Modules log with the standard library: the message is the event's name, `extra` its members.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(self._members(record), enc_hook=repr).decode()

    def _members(self, record: logging.LogRecord) -> Mapping[str, object]:
        members: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        members |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return members


class _KeyValueLines(_JsonLines):
    """`key=value` pairs; a value that is not one plain word is quoted as JSON quotes it."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_word(value)}" for name, value in self._members(record).items())


def _word(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else msgspec.json.encode(text.encode(errors="backslashreplace").decode()).decode()


def setup_logging(*, json_lines: bool) -> None:
    """Send everything of level INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _KeyValueLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
