"""A transcript page by page: the first screen comes first, and no page reads again what another did."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum, auto
from typing import NamedTuple

from msgspec import Struct

from feedback.errors import InvalidRequest, LogFailure
from feedback.model import SessionIdentity
from gateway.reading.shown import ShownMessage, shown
from persistence.session_log import SessionLogs
from persistence.transcripts import Entry, Message, Transcript, open_transcript

_PAGE_CHARACTERS = (24 * 1024, 128 * 1024)
"""Of the first page, and of the others: at which size a page ends."""
_PAGE_MESSAGES = 200
_PLACES = 32
"""Readers whose place is kept: each holds an open file, and the layout of its log."""
_PLACE_S = 60.0
_START = -1


class TranscriptPage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Messages in the order of the log, and where the next page begins (absent on the last one).

    `session` is who the log says it is; `parent_session` the one that it was forked from.
    """

    session: SessionIdentity
    messages: tuple[ShownMessage, ...]
    next: int | None = None
    parent_session: str | None = None
    subagent: bool = False


class _Weighed(NamedTuple):
    message: ShownMessage
    weight: int


def _weight(entry: Entry, message: ShownMessage) -> int:
    """What a message adds to a page: much text may be shown as little, and be as much work."""
    text = entry.text if isinstance(entry, Message) else ""
    return max(len(text), message.characters)


class _Place:
    """Where somebody's reading stands: an open log, and the messages that are left of it."""

    def __init__(self, transcript: Transcript, opened: ExitStack, after: int) -> None:
        self.transcript = transcript
        self.kept_at = 0.0
        self._opened = opened
        entries = (entry for entry in transcript.entries(opaque=False) if entry.seq > after)
        self.messages = (_Weighed(message, _weight(entry, message)) for entry in entries if (message := shown(entry)))

    def close(self) -> None:
        self._opened.close()


class TranscriptReader:
    """Gives transcripts in pages. Thread-safe; blocks.

    Who goes on reading within a minute goes on where they were, in the log as it was when they began. Everybody else
    begins from the front: no answer depends on what is kept.
    """

    def __init__(self, logs: SessionLogs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, int], _Place] = OrderedDict()
        self._closed = False

    def page(self, session_id: str, after: int = _START) -> TranscriptPage | None:
        """The messages behind the row `after`; None when there is no such Session.

        A log that is damaged further on is shown as far as it can be read; the page that meets the damage says it.

        Raises LogCorrupt, LogFormatUnsupported, LogAmbiguous, RowInvalid, LogUnreadable.
        """
        place = self._taken(session_id, after) or self._opened(session_id, after)
        if place is None:
            return None
        transcript = place.transcript
        try:
            messages, end = _filled(place.messages, _PAGE_CHARACTERS[after > _START])
        except BaseException:
            place.close()
            raise
        last = None if end is _End.OF_LOG else messages[-1].seq
        if end is _End.OF_PAGE and last is not None:
            self._keep((session_id, last), place)
        else:
            place.close()
        return TranscriptPage(
            session=transcript.identity,
            messages=tuple(messages),
            next=last,
            parent_session=transcript.parent_session,
            subagent=transcript.subagent,
        )

    def message(self, session_id: str, seq: int) -> ShownMessage | None:
        """One message without anything cut. None when there is none at `seq`. Raises as `page`."""
        with open_transcript(self._logs, session_id) as transcript:
            if transcript is None:
                return None
            return next(
                (shown(entry, whole=True) for entry in transcript.entries(opaque=False) if entry.seq == seq), None
            )

    def close(self) -> None:
        """Close the logs that are kept open."""
        with self._lock:
            self._closed = True
            for place in self._places.values():
                place.close()
            self._places.clear()

    def _opened(self, session_id: str, after: int) -> _Place | None:
        with ExitStack() as opened:
            transcript = opened.enter_context(open_transcript(self._logs, session_id))
            return None if transcript is None else _Place(transcript, opened.pop_all(), after)

    def _taken(self, session_id: str, after: int) -> _Place | None:
        """The place where such a reading stands, which is nobody else's from here on; if its log is still there."""
        with self._lock:
            self._drop_old()
            place = self._places.pop((session_id, after), None)
        if place is not None and not self._is_current(session_id, place):
            place.close()
            return None
        return place

    def _is_current(self, session_id: str, place: _Place) -> bool:
        try:
            return self._logs.identity(session_id) == place.transcript.identity
        except LogFailure:
            return False  # whoever reads it from the front is told where it ends

    def _keep(self, key: tuple[str, int], place: _Place) -> None:
        place.kept_at = time.monotonic()
        with self._lock:
            if self._closed:
                place.close()
                return
            other = self._places.pop(key, None)
            self._places[key] = place
            if other is None and len(self._places) > _PLACES:
                _, other = self._places.popitem(last=False)
            if other is not None:
                other.close()

    def _drop_old(self) -> None:
        while self._places and time.monotonic() - next(iter(self._places.values())).kept_at > _PLACE_S:
            self._places.popitem(last=False)[1].close()


def seq_of(text: str, name: str) -> int:
    """A row's place in a log, from a request. Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**53))):
        raise InvalidRequest(name, "expected a whole number, 0 or more")
    return int(text)


class _End(Enum):
    """Why a page ends."""

    OF_PAGE = auto()
    """It is full; there may be more. One message more would tell, but an empty last page costs less."""
    OF_LOG = auto()
    DAMAGE = auto()
    """Whoever asks for the next page is told."""


def _filled(found: Iterator[_Weighed], most_characters: int) -> tuple[list[ShownMessage], _End]:
    """The messages of a page. Raises LogFailure before the first."""
    messages, characters = list[ShownMessage](), 0
    while characters < most_characters and len(messages) < _PAGE_MESSAGES:
        try:
            weighed = next(found, None)
        except LogFailure:
            if not messages:
                raise
            return messages, _End.DAMAGE
        if weighed is None:
            return messages, _End.OF_LOG
        messages.append(weighed.message)
        characters += weighed.weight
    return messages, _End.OF_PAGE
