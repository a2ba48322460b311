"""Structured logs on stderr: one line an event, as `key=value` pairs or as JSON.

Modules log with the standard library and name members in the message: `_log.info("dropped bytes=%d", size)`
is the event "dropped" with the member `bytes`.
"""

import logging
import re
import sys
from datetime import UTC, datetime

import msgspec

_PLACEHOLDER = re.compile(r"(?:(\w+)=)?%[-+ .\d]*[a-z]")


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(self._members(record), enc_hook=str).decode()

    def _members(self, record: logging.LogRecord) -> dict[str, object]:
        event, named = _split(record)
        members: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        members |= {name: _plain(value) for name, value in named.items()}
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return members


class _KeyValueLines(_JsonLines):
    """`key=value` pairs; a value that is not one plain word is quoted as JSON quotes it."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_word(value)}" for name, value in self._members(record).items())


def setup_logging(*, json_lines: bool) -> None:
    """Send everything of level INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _KeyValueLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _split(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The event's name, and its members by the names that stand before their placeholders."""
    if not isinstance(record.args, tuple) or not record.args:
        return record.getMessage(), {}
    values, named = iter(record.args), dict[str, object]()

    def take(placeholder: re.Match[str]) -> str:
        value = next(values, "")
        if placeholder[1] is None:
            return str(value)
        named[placeholder[1]] = value
        return ""

    event = _PLACEHOLDER.sub(take, str(record.msg))
    return " ".join(event.split()), named


def _plain(value: object) -> object:
    """As JSON can hold it: numbers stay, the rest is text without lone surrogates."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode(errors="backslashreplace").decode()


def _word(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else msgspec.json.encode(text).decode()
