"""The model: each message's feedback is a compare-and-set register, a Session's revision counts its changes."""

from collections import defaultdict
from collections.abc import Mapping
from math import inf

from msgspec import Struct

from feedback.events import Event, FeedbackDeleted, FeedbackPut, FeedbackRejected, FeedbackUnchanged
from feedback.model import Item, SessionIdentity
from feedback.requests import Put
from feedback.results import VersionConflict
from tests.chaos.history import Mutation


class Shown(Struct, frozen=True):
    """A Session's feedback at one revision, as a list shows it."""

    identity: SessionIdentity | None
    items: tuple[Item, ...]


class _State(Struct, frozen=True):
    """A Session's feedback at one revision, and when the command that brought it there was first sent."""

    identity: SessionIdentity | None
    items: Mapping[str, Item]
    sent: float


_NOTHING = _State(None, {}, -inf)


class Registers:
    """All Sessions' feedback, outcome by outcome in commit order."""

    def __init__(self) -> None:
        self._states: dict[str, list[_State]] = defaultdict(lambda: [_NOTHING])
        self._versions: set[str] = set()

    def wrong(self, event: Event, request: Mutation) -> str | None:
        """Why this event cannot be what comes of the request now, if it cannot."""
        if (event.session_id, event.message_id) != (request.session_id, request.message_id):
            return "about another message"
        if isinstance(event, FeedbackRejected) and not isinstance(event.error, VersionConflict):
            return None  # about the log: the checker looks at that
        current = self._items(event).get(request.message_id)
        version = None if current is None else current.version
        conflicts = request.if_version != version and (isinstance(request, Put) or current is not None)
        right = self._is_right(event, request, current, conflicts=conflicts)
        return None if right else f"{type(event).__name__} where {current} stood"

    def step(self, event: Event, sent: float) -> int:
        """Take the outcome of a command that was first sent then; the revision that it has to bear."""
        states, items = self._states[event.session_id], self._items(event)
        match event:
            case FeedbackPut(item=item):
                items[event.message_id] = item
            case FeedbackDeleted():
                items.pop(event.message_id, None)
            case _:
                return len(states) - 1
        states.append(_State(event.session, items, sent))
        return len(states) - 1

    def state(self, session_id: str, revision: int, *, sent_before: float) -> Shown | None:
        """What was committed as this revision; None when no command sent by then can have brought it about."""
        states = self._states[session_id]
        if revision >= len(states) or states[revision].sent > sent_before:
            return None
        return Shown(states[revision].identity, tuple(states[revision].items.values()))

    def _items(self, event: Event) -> dict[str, Item]:
        """The items of the event's Session, those of another life count as absent."""
        last = self._states[event.session_id][-1]
        return dict(last.items) if last.identity == event.session else {}

    def _is_right(self, event: Event, request: Mutation, current: Item | None, *, conflicts: bool) -> bool:
        match event:
            case FeedbackRejected(error=VersionConflict(current=claimed)):
                return conflicts and claimed == current
            case FeedbackUnchanged(item=None):
                return current is None and not isinstance(request, Put)
            case FeedbackUnchanged(item=Item() as item):
                return not conflicts and item == current and _says(request, item)
            case FeedbackPut(item=item):
                return not conflicts and self._is_fresh(item, request, current)
            case FeedbackDeleted():
                return not conflicts and current is not None
        return False

    def _is_fresh(self, item: Item, request: Mutation, current: Item | None) -> bool:
        fresh = item.version not in self._versions
        self._versions.add(item.version)
        kept = current is None or (item.created_at == current.created_at and item.updated_at >= current.updated_at)
        return fresh and kept and _says(request, item) and not (current is not None and _says(request, current))


def _says(request: Mutation, item: Item) -> bool:
    return isinstance(request, Put) and (item.rating, item.note) == (request.rating, request.note)
