"""What a catalog shows of a Session, folded from its log row by row: as far as it grew, and no further."""

import contextlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from persistence.session_log import messages
from persistence.session_log.jsontext import MAX_SAFE, well_formed
from persistence.session_log.messages import ASSISTANT, USER
from persistence.session_log.rows import Row
from persistence.transcripts.entries import TITLE, Message, Title, entry_of

SUMMARY_TYPES = frozenset((ASSISTANT, USER, TITLE))
"""The types of rows that the fold looks at."""

_NAME_CHARACTERS = 200
_PROMPT_CHARACTERS = 400


class ReadError(Struct, frozen=True):
    """Why a log could not be read: the failure's name in the contract, and its sentence."""

    code: str
    message: str


class SessionSummary(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One Session, for lists. All text is well-formed Unicode; what is long is cut to 200 characters, `prompt` to 400.

    `title` is the last one that the log gives, `prompt` what a person asked first. `answers` counts the messages that
    may carry feedback; `provider` and `model` wrote the last of them. `updated_at` is the last message's time, or
    the creation's; times in milliseconds since the Unix epoch. `size` is the log's in bytes. A log that cannot be
    read has an `error`, and what was known before it.
    """

    session_id: str
    created_at: int | None = None
    updated_at: int | None = None
    cwd: str | None = None
    title: str | None = None
    prompt: str | None = None
    answers: int = 0
    provider: str | None = None
    model: str | None = None
    parent_session: str | None = None
    subagent: bool = False
    size: int = 0
    error: ReadError | None = None


class Tally(Struct):
    """The part of a summary that the rows say."""

    title: str | None = None
    prompt: str | None = None
    prompt_by_person: bool = False
    answers: int = 0
    provider: str | None = None
    model: str | None = None
    last_message_at: int | None = None

    def add(self, rows: Iterable[Row], session_id: str, version: int) -> None:
        """Takes more rows of `SUMMARY_TYPES` into account.

        Raises Misshapen for an assistant message that is not of the format's shape, and what reading the rows raises.
        """
        for row in rows:
            if row.type == ASSISTANT:
                self._add_answer(row, session_id, version)
            elif row.type == TITLE:
                entry = entry_of(row, session_id, version)
                self.title = _beginning(entry.title, _NAME_CHARACTERS) if isinstance(entry, Title) else self.title
            else:
                self._add_prompt(row, session_id, version)

    def _add_answer(self, row: Row, session_id: str, version: int) -> None:
        eligible = messages.eligible_id(row, session_id, version) is not None
        try:
            known = _decode_answer(row.line)
        except _UNDECODED:
            entry = entry_of(row, session_id, version)  # an unusual one: legacy shapes, lone surrogates
            assert isinstance(entry, Message)
            written_by, time = (entry.provider, entry.model), entry.time
        else:
            source, time = known.data.message.source, known.time
            written_by = source.provider, source.model
        self.last_message_at = time if time is not None else self.last_message_at
        if eligible:
            self.answers += 1
            self.provider, self.model = (_beginning(name or "", _NAME_CHARACTERS) for name in written_by)

    def _add_prompt(self, row: Row, session_id: str, version: int) -> None:
        """A person's first message is the prompt; until there is one, what was put in for the person."""
        if self.prompt_by_person:
            with contextlib.suppress(*_UNDECODED):
                self.last_message_at = _decode_clock(row.line).time
            return
        entry = entry_of(row, session_id, version)
        if not isinstance(entry, Message):
            return
        self.last_message_at = entry.time if entry.time is not None else self.last_message_at
        by_person = entry.source == "user"
        if entry.replaces is None and entry.text.strip() and (by_person or self.prompt is None):
            self.prompt, self.prompt_by_person = _beginning(entry.text, _PROMPT_CHARACTERS), by_person


class _Model(Struct):
    provider: str
    model: str


class _Message(Struct):
    source: _Model


class _Data(Struct):
    message: _Message


class _Clock(Struct):
    time: Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)]


class _Answer(_Clock):
    data: _Data


_decode_clock = msgspec.json.Decoder(_Clock).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError)


def _beginning(text: str, characters: int) -> str:
    return well_formed(text[:characters])
