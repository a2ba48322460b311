"""Which ratings are exported."""

from datetime import UTC, datetime

from msgspec import Struct

from feedback.model import MOST_MILLISECONDS, Item, Rating

_FEWEST_DIGITS = 11  # of milliseconds: "2026" and "20260131" mean something else


class Filters(Struct, frozen=True, kw_only=True):
    """All of them must hold; an empty one always does.

    `since` and `until` bound the time of the rating's last change (`updatedAt`), from the first, before the second, in
    milliseconds since the Unix epoch. `projects` are `cwd`s to the letter ("": Sessions without one), `models` names
    of models, bare or behind their provider's ("provider/model").
    """

    since: int | None = None
    until: int | None = None
    rating: Rating | None = None
    projects: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def take_item(self, item: Item) -> bool:
        """What the stored item decides."""
        return (
            (self.since is None or item.updated_at >= self.since)
            and (self.until is None or item.updated_at < self.until)
            and self.rating in {None, item.rating}
        )

    def take_project(self, cwd: str | None) -> bool:
        """What the Session's identity decides."""
        return not self.projects or (cwd or "") in self.projects

    def take_answer(self, provider: str | None, model: str | None) -> bool:
        """What only the log says."""
        return not self.models or model in self.models or f"{provider}/{model}" in self.models


def moment_of(text: str) -> int:
    """A time as people write it, in milliseconds since the Unix epoch: such a number, a date, or a date and time.

    ISO 8601; UTC where it says no zone; a date is its first instant. Raises ValueError for anything else.
    """
    if text.isascii() and text.isdigit() and len(text) >= _FEWEST_DIGITS:
        milliseconds = int(text)
    else:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        milliseconds = round(moment.timestamp() * 1000)
    if not 0 <= milliseconds <= MOST_MILLISECONDS:
        raise ValueError(f"{text!r} lies outside of the times that are stored")
    return milliseconds
