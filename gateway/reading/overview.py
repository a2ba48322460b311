"""All ratings added up: over time, by the model that answered, by project."""

import datetime
import threading
import time
from collections.abc import ItemsView, Mapping
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from feedback.errors import FeedbackError
from feedback.model import SessionIdentity
from gateway.reading.ratings import Rated
from persistence.session_log import SessionLogs
from persistence.transcripts import Message, open_transcript

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_READ_FOR_S = 0.5

Key = TypeVar("Key")
Models: TypeAlias = dict[str, str | None]
"""The model that gave an answer, by message id ("": it says none); None where no log holds such an answer."""


class Share(Struct, frozen=True, omit_defaults=True):
    """Ratings that stand, of one model or project; `name` is None for answers without one."""

    positive: int
    negative: int
    name: str | None = None


class Day(Struct, frozen=True):
    """Standing ratings by the day of their last change (ISO date, UTC). Days without any are left out."""

    day: str
    positive: int
    negative: int


class Overview(Struct, frozen=True, kw_only=True, rename="camel"):
    """`unread`: rated Sessions whose logs were not read yet, so that their models are not counted yet;
    `unknown_answers`: ratings of answers that no log holds any more."""

    positive: int
    negative: int
    notes: int
    rated_sessions: int
    sessions: int
    days: tuple[Day, ...]
    models: tuple[Share, ...]
    projects: tuple[Share, ...]
    unread: int
    unknown_answers: int


class AnswerModels:
    """Which model gave each rated answer, from the logs: read once per answer, some at each call. Thread-safe."""

    def __init__(self, logs: SessionLogs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._known: dict[str, tuple[SessionIdentity, Models]] = {}

    def learn(self, sessions: Mapping[str, Rated], *, for_s: float = _READ_FOR_S) -> Mapping[str, Models]:
        """The models of those Sessions whose rated answers are all known. Reads logs for about `for_s` seconds, unless
        another thread reads already: then what is known by now has to do."""
        is_reader = self._lock.acquire(blocking=False)
        try:
            return self._learned(sessions, until=time.monotonic() + for_s if is_reader else None)
        finally:
            if is_reader:
                self._lock.release()

    def _learned(self, sessions: Mapping[str, Rated], *, until: float | None) -> Mapping[str, Models]:
        """Changes what is known only where it may read, `until` when."""
        found = dict[str, Models]()
        if until is not None:
            for session_id in self._known.keys() - sessions.keys():
                del self._known[session_id]
        for session_id, rated in sessions.items():
            identity, models = self._known.get(session_id, (None, Models()))
            if identity != rated.identity or any(item.message_id not in models for item in rated.items):
                if until is None or time.monotonic() >= until:
                    continue
                models = self._read(session_id, rated)
                self._known[session_id] = (rated.identity, models)
            found[session_id] = models
        return found

    def _read(self, session_id: str, rated: Rated) -> Models:
        models: Models = {item.message_id: None for item in rated.items}
        # What cannot be read has no model; the list of Sessions says what is wrong with the log.
        with suppress(FeedbackError), open_transcript(self._logs, session_id) as transcript:
            if transcript is not None and transcript.identity == rated.identity:
                for entry in transcript.appearing(opaque=False):
                    if isinstance(entry, Message) and entry.eligible and entry.message_id in models:
                        models[entry.message_id] = entry.model or ""
        return models


def add_up(sessions: Mapping[str, Rated], models: Mapping[str, Models], *, total: int) -> Overview:
    """The overview of these ratings; `total` is how many Sessions there are, rated or not."""
    by_day, by_model, by_project = _Counts[int](), _Counts[str | None](), _Counts[str | None]()
    unknown = 0
    for session_id, rated in sessions.items():
        by_project.add(rated.identity.cwd, rated.positive, rated.negative)
        known = models.get(session_id)
        for item in rated.items:
            by_day.add(item.day, item.is_positive, not item.is_positive)
            if known is None:
                continue
            if (model := known.get(item.message_id)) is None:
                unknown += 1
            else:
                by_model.add(model or None, item.is_positive, not item.is_positive)
    return Overview(
        positive=sum(rated.positive for rated in sessions.values()),
        negative=sum(rated.negative for rated in sessions.values()),
        notes=sum(rated.notes for rated in sessions.values()),
        rated_sessions=len(sessions),
        sessions=total,
        days=tuple(Day(_iso(day), *counts) for day, counts in sorted(by_day.items())),
        models=_shares(by_model),
        projects=_shares(by_project),
        unread=len(sessions) - len(models),
        unknown_answers=unknown,
    )


class _Counts(Generic[Key]):
    """Positive and negative ratings by something."""

    def __init__(self) -> None:
        self._counts: dict[Key, tuple[int, int]] = {}

    def add(self, key: Key, positive: int, negative: int) -> None:
        more, less = self._counts.get(key, (0, 0))
        self._counts[key] = more + positive, less + negative

    def items(self) -> ItemsView[Key, tuple[int, int]]:
        return self._counts.items()


def _shares(counts: _Counts[str | None]) -> tuple[Share, ...]:
    """The one with the most ratings first."""
    ordered = sorted(counts.items(), key=lambda entry: (-sum(entry[1]), entry[0] or ""))
    return tuple(Share(positive, negative, name) for name, (positive, negative) in ordered)


def _iso(day: int) -> str:
    # An imported item may bear any time.
    return datetime.date.fromordinal(min(_EPOCH + day, datetime.date.max.toordinal())).isoformat()
