"""The fold: what events do to a cached list. Pure: no clock, no I/O.

A Session's revisions are dense over its material events (put, deleted), so the revision alone tells
an event that is old (skipped), next (applied), or ahead (something was missed: `Gap`).
"""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from feedback.events import Event, FeedbackDeleted, FeedbackPut
from feedback.lists import CachedList
from feedback.model import Item, SessionIdentity


class Gap(Struct, frozen=True):
    """The event does not follow from the view: only the store knows the Session's list now."""


View: TypeAlias = CachedList | None
"""None: nothing is cached."""


def fold(view: View, events: Iterable[Event]) -> View | Gap:
    """The view after all events of its Session, in order; `Gap` as soon as one does not follow.

    An event of a revision that the view has reached changes nothing, so applying twice is applying once.
    """
    folding = _Folding(view)
    for event in events:
        if not folding.apply(event):
            return Gap()
    return folding.view()


class _Folding:
    """A view under way. Its items become a dictionary with the first change, so that each event costs the same."""

    def __init__(self, view: View) -> None:
        self._before = view
        self._session_id = view.session_id if view else ""
        self._identity: SessionIdentity | None = view.identity if view else None
        self._revision = view.revision if view else 0
        self._items: dict[str, Item] | None = None

    def view(self) -> View:
        """The view now; the one that it began with if nothing changed."""
        if self._items is None or self._identity is None:
            return self._before
        return CachedList(
            session_id=self._session_id,
            identity=self._identity,
            revision=self._revision,
            items=tuple(self._items.values()),
        )

    def apply(self, event: Event) -> bool:
        """False: the event does not follow."""
        if not isinstance(event, FeedbackPut | FeedbackDeleted):
            # Of a later revision, it tells that a material one was missed. Where nothing is known, nothing was.
            return self._identity is None or event.revision <= self._revision
        if self._identity is None:
            return self._begin(event)
        if event.revision <= self._revision:
            # Two lives of one Session never share a revision: such a view was not made from this history.
            return event.revision < self._revision or event.session == self._identity
        return event.revision == self._revision + 1 and self._advance(event)

    def _begin(self, event: FeedbackPut | FeedbackDeleted) -> bool:
        """The first revision needs no history; any other does."""
        if not isinstance(event, FeedbackPut) or event.revision != 1 or event.session is None:
            return False
        self._session_id, self._identity, self._revision = event.session_id, event.session, 1
        self._items = {event.message_id: event.item}
        return True

    def _advance(self, event: FeedbackPut | FeedbackDeleted) -> bool:
        if event.session is None:
            return False
        if event.session != self._identity:
            # The Session began a new life. The put that says so drops the old life's items (CONTRACT,
            # "Lifecycle identity"); a delete cannot be material there.
            self._items = {}
        elif self._items is None:
            assert self._before is not None, "it has an identity, and nothing changed yet"
            self._items = {item.message_id: item for item in self._before.items}
        if isinstance(event, FeedbackPut):
            self._items[event.message_id] = event.item
        elif self._items.pop(event.message_id, None) is None:
            return False
        self._identity, self._revision = event.session, event.revision
        return True
