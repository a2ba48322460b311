"""A transcript page by page: the first screen comes first, whatever the log's size."""

from collections.abc import Iterator

from msgspec import Struct

from feedback.errors import InvalidRequest, LogFailure
from feedback.model import SessionIdentity
from gateway.reading.shown import ShownMessage, shown
from persistence.session_log import SessionLogs
from persistence.transcripts import open_transcript

_PAGE_CHARACTERS = (24 * 1024, 128 * 1024)
"""Of the first page, and of the others: at which size a page ends."""
_PAGE_MESSAGES = 200


class TranscriptPage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Messages in the order of the log, and where the next page begins (absent on the last one).

    `session` is who the log says it is; `parent_session` the one that it was forked from.
    """

    session: SessionIdentity
    messages: tuple[ShownMessage, ...]
    next: int | None = None
    parent_session: str | None = None
    subagent: bool = False


def transcript_page(logs: SessionLogs, session_id: str, after: int = -1) -> TranscriptPage | None:
    """The messages behind the row `after`; None when there is no such Session.

    A log that is damaged further on is shown as far as it can be read; the page that meets the damage says it.

    Raises LogCorrupt, LogFormatUnsupported, LogAmbiguous, RowInvalid, LogUnreadable.
    """
    with open_transcript(logs, session_id) as transcript:
        if transcript is None:
            return None
        found = (
            message for entry in transcript.entries(opaque=False) if entry.seq > after and (message := shown(entry))
        )
        messages, more = _filled(found, _PAGE_CHARACTERS[after >= 0])
        return TranscriptPage(
            session=transcript.identity,
            messages=tuple(messages),
            next=messages[-1].seq if more else None,
            parent_session=transcript.parent_session,
            subagent=transcript.subagent,
        )


def whole_message(logs: SessionLogs, session_id: str, seq: int) -> ShownMessage | None:
    """One message without anything cut. None when there is none at `seq`. Raises as `transcript_page`."""
    with open_transcript(logs, session_id) as transcript:
        if transcript is None:
            return None
        return next((shown(entry, whole=True) for entry in transcript.entries(opaque=False) if entry.seq == seq), None)


def seq_of(text: str, name: str) -> int:
    """A row's place in a log, from a request. Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**53))):
        raise InvalidRequest(name, "expected a whole number, 0 or more")
    return int(text)


def _filled(found: Iterator[ShownMessage], most_characters: int) -> tuple[list[ShownMessage], bool]:
    messages, characters = list[ShownMessage](), 0
    while True:
        try:
            message = next(found, None)
        except LogFailure:
            if not messages:
                raise
            return messages, True  # whoever asks for the next page is told
        if message is None:
            return messages, False
        messages.append(message)
        characters += message.characters
        if characters >= most_characters or len(messages) == _PAGE_MESSAGES:
            # Reading one more would tell, at the price of a whole reading; an empty last page costs less.
            return messages, True
