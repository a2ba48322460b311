"""All that the page reads, behind one door: opened when it is first asked, and brought up to date as it is asked."""

import logging
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, assert_never

from msgspec import Struct, structs

from feedback.errors import FeedbackError, LogUnreadable, ShuttingDown, StoreUnavailable
from feedback.settings import Settings
from gateway.reading.overview import AnswerModels, Overview, add_up
from gateway.reading.pages import TranscriptReader
from gateway.reading.ratings import Rated, Ratings
from persistence.session_log import SessionLogs
from persistence.summaries import Count, ReadError, SessionSummaries, SessionSummary

_FRESH_S = 1.0
"""What was read so long ago is shown without looking again."""
_WAIT_S = 0.3
"""Seconds that a request waits for a look at the logs; the first of many takes longer, and is shown as it goes."""
_PAGE = 60
_ALL = 1000

_log = logging.getLogger(__name__)


class RatedFilter(StrEnum):
    """Which Sessions a list shows."""

    UNRATED = "unrated"
    """Those with answers, none of which is rated."""
    NEGATIVE = "negative"
    NOTED = "noted"


class Counts(Struct, frozen=True):
    """What is rated in a Session."""

    positive: int
    negative: int
    notes: int


class ListedSession(Struct, frozen=True):
    """A Session of a list; `feedback` is None where nothing is known of ratings."""

    session: SessionSummary
    feedback: Counts | None


class SessionList(Struct, frozen=True, omit_defaults=True):
    """A page of `total` Sessions that match. `reading`: logs are still being read, so there may be more.

    `incomplete`: a directory of logs could not be looked at, so Sessions may be missing.
    """

    sessions: tuple[ListedSession, ...]
    total: int
    next: str | None = None
    reading: bool = False
    incomplete: bool = False


class Facets(Struct, frozen=True):
    """What lists can be narrowed down to."""

    projects: tuple[Count, ...]
    models: tuple[Count, ...]
    feedback: bool
    """Whether ratings are known here, so that lists can be filtered by them."""


class Query(Struct, frozen=True):
    """What a list is asked for. `text`: every word occurs; `project` and `model` to the letter ("": without one)."""

    text: str = ""
    project: str | None = None
    model: str | None = None
    rated: RatedFilter | None = None
    after: str | None = None


class Library:
    """Summaries, ratings and transcripts of one deployment. Thread-safe; blocks, so call it off the event loop."""

    def __init__(self, settings: Settings, logs: SessionLogs) -> None:
        self.logs = logs
        self.transcripts = TranscriptReader(logs)
        self._opening = threading.Lock()
        self._summaries: SessionSummaries | None = None
        self._ratings = Ratings(settings.sidecar_url)
        self._answers = AnswerModels(logs)
        self._refresher: threading.Thread | None = None
        self._refreshed_at = -_FRESH_S
        self._failure: FeedbackError | None = None
        self._incomplete = False
        self._lives: dict[str, _Life] = {}
        self._closed = False

    def sessions(self, query: Query) -> SessionList:
        """A page of Sessions, the most recently used first.

        Raises:
            InvalidRequest: `query.after` is none of ours.
            StoreUnavailable: a filter needs ratings, and the store cannot be read here; summaries cannot be kept.
            ShuttingDown: it is closed.
        """
        summaries, reading = self._up_to_date()
        rated = self._rated(is_needed=query.rated is not None)
        among, without = self._chosen(query.rated, rated or {})
        found = summaries.search(
            query.text,
            project=query.project,
            model=query.model,
            among=among,
            without=without,
            after=query.after,
            limit=_PAGE,
        )
        listed = tuple(
            ListedSession(_public(one), None if rated is None else _counts(one, rated)) for one in found.sessions
        )
        return SessionList(listed, found.total, found.next, reading, self._incomplete)

    def session(self, session_id: str) -> SessionSummary | None:
        """One Session's summary, None when there is no such Session. Raises as `sessions`."""
        summaries, _ = self._up_to_date(wait_s=0.0)
        found = summaries.get(session_id)
        if found is None:  # it may be new
            found = self._up_to_date()[0].get(session_id)
        return None if found is None else _public(found)

    def facets(self) -> Facets:
        """Projects and models, the one with the most Sessions first. Raises as `sessions`."""
        summaries, _ = self._up_to_date()
        rated = self._rated(is_needed=False)
        return Facets(tuple(summaries.projects()), tuple(summaries.models()), rated is not None)

    def overview(self) -> Overview:
        """All standing ratings, added up. Raises as `sessions`."""
        summaries, _ = self._up_to_date()
        rated = self._standing(self._rated(is_needed=True) or {})
        return add_up(rated, self._answers.learn(rated), total=summaries.search(limit=1).total)

    def close(self) -> None:
        """Release files and connections. A look at the logs that goes on for long ends with the process."""
        with self._opening:
            self._closed = True
            self.transcripts.close()
            if self._refresher is not None:
                self._refresher.join(_WAIT_S)
            if self._summaries is not None and not (self._refresher and self._refresher.is_alive()):
                self._summaries.close()
        self._ratings.close()

    def _up_to_date(self, *, wait_s: float = _WAIT_S) -> tuple[SessionSummaries, bool]:
        """The summaries, and whether they are still being read."""
        with self._opening:
            if self._closed:
                raise ShuttingDown
            if self._summaries is None:
                self._summaries = SessionSummaries(self.logs.root)
            summaries, refresher = self._summaries, self._refresher
            if refresher is None or (not refresher.is_alive() and time.monotonic() - self._refreshed_at >= _FRESH_S):
                refresher = threading.Thread(target=self._refresh, args=(summaries,), name="summaries", daemon=True)
                self._refresher = refresher
                refresher.start()
        refresher.join(wait_s)
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # it may be raised many times
        return summaries, refresher.is_alive()

    def _refresh(self, summaries: SessionSummaries) -> None:
        """In a thread of its own: a first look at many logs takes longer than a request may."""
        try:
            try:
                found = summaries.refresh()
                self._incomplete = False
            except LogUnreadable as failure:  # all others were looked at
                if not self._incomplete:
                    _log.warning("logs cannot be looked at reason=%s", failure)
                found, self._incomplete = None, True
            if found is None or found.read or found.removed or not self._lives:
                self._lives = _lives(summaries)
            self._failure = None
        except FeedbackError as failure:
            self._failure = failure
        self._refreshed_at = time.monotonic()

    def _rated(self, *, is_needed: bool) -> Mapping[str, Rated] | None:
        """What is rated, None where no store is seen. Raises StoreUnavailable if it `is_needed`."""
        try:
            rated = self._ratings.sessions()
        except FeedbackError:
            if is_needed:
                raise
            return None
        if rated is None and is_needed:
            raise StoreUnavailable("no store at sidecar_url, seen from the gateway")
        return rated

    def _standing(self, rated: Mapping[str, Rated]) -> dict[str, Rated]:
        """Without what is bound to another life of its Session, which counts as absent (CONTRACT), or to none."""
        lives = self._lives
        return {
            session_id: one for session_id, one in rated.items() if one.items and _is_of(one, lives.get(session_id))
        }

    def _chosen(
        self, wanted: RatedFilter | None, rated: Mapping[str, Rated]
    ) -> tuple[list[str] | None, list[str] | None]:
        """Which Sessions a filter takes, and which it leaves out."""
        if wanted is None:
            return None, None
        standing = self._standing(rated)
        match wanted:
            case RatedFilter.UNRATED:
                silent = (session_id for session_id, life in self._lives.items() if not life.answers)
                return None, [*standing, *silent]
            case RatedFilter.NEGATIVE:
                return [session_id for session_id, one in standing.items() if one.negative], None
            case RatedFilter.NOTED:
                return [session_id for session_id, one in standing.items() if one.notes], None
            case _:
                assert_never(wanted)


class _Life(NamedTuple):
    """What has to be known of every Session to filter by its ratings."""

    created_at: int | None
    cwd: str | None
    answers: int


def _lives(summaries: SessionSummaries) -> dict[str, _Life]:
    lives, after = dict[str, _Life](), None
    while True:
        page = summaries.search(after=after, limit=_ALL)
        lives |= {one.session_id: _Life(one.created_at, one.cwd, one.answers) for one in page.sessions}
        if (after := page.next) is None:
            return lives


def _is_of(rated: Rated, life: _Life | None) -> bool:
    return life is not None and (rated.identity.created_at, rated.identity.cwd) == life[:2]


def _counts(summary: SessionSummary, rated: Mapping[str, Rated]) -> Counts:
    one = rated.get(summary.session_id)
    if one is None or not _is_of(one, _Life(summary.created_at, summary.cwd, summary.answers)):
        return Counts(0, 0, 0)
    return Counts(one.positive, one.negative, one.notes)


def _public(summary: SessionSummary) -> SessionSummary:
    """Without the paths of this machine that a failure's sentence names; they are for `feedback sessions`."""
    if summary.error is None:
        return summary
    return structs.replace(summary, error=ReadError(summary.error.code, ""))
