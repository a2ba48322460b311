"""The fold: what an event does to a cached list. Pure: no clock, no I/O.

A Session's revisions are dense over its material events (put, deleted), so the revision alone tells
an event that is old (skipped), next (applied), or ahead (something was missed: `Gap`).
"""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from feedback.events import Event, FeedbackDeleted, FeedbackPut
from feedback.model import Item, SessionIdentity

SCHEMA = 1
"""Of `CachedList`. An entry of another schema is a miss, so a new one needs no migration."""


class CachedList(Struct, frozen=True, kw_only=True, rename="camel"):
    """One Session's feedback at one revision; items in order of first creation."""

    schema: int = SCHEMA
    session_id: str
    identity: SessionIdentity
    revision: int
    items: tuple[Item, ...]


class Gap(Struct, frozen=True):
    """The event does not follow from the view: only the store knows the Session's list now."""


View: TypeAlias = CachedList | None
"""None: nothing is cached."""


def apply(view: View, event: Event) -> View | Gap:
    """The view after the event, which is one of the view's Session.

    An event of a revision that the view has reached changes nothing, so applying twice is applying once.
    """
    if not isinstance(event, FeedbackPut | FeedbackDeleted):
        return Gap() if view is not None and event.revision > view.revision else view
    if view is None:
        return _begun(event)
    if event.revision <= view.revision:
        # Two lives of one Session never share a revision: such a view was not made from this history.
        return Gap() if event.revision == view.revision and event.session != view.identity else view
    return _advanced(view, event) if event.revision == view.revision + 1 else Gap()


def _begun(event: FeedbackPut | FeedbackDeleted) -> View | Gap:
    """The first revision needs no history; any other does."""
    if not isinstance(event, FeedbackPut) or event.revision != 1 or event.session is None:
        return Gap()
    return CachedList(session_id=event.session_id, identity=event.session, revision=1, items=(event.item,))


def _advanced(view: CachedList, event: FeedbackPut | FeedbackDeleted) -> View | Gap:
    if event.session is None:
        return Gap()
    if event.session != view.identity:
        # The Session began a new life. The put that says so drops the old life's items (CONTRACT,
        # "Lifecycle identity"); a delete cannot be material there.
        items: tuple[Item, ...] = ()
    else:
        items = view.items
    known = any(item.message_id == event.message_id for item in items)
    if isinstance(event, FeedbackDeleted):
        if not known:
            return Gap()
        items = tuple(item for item in items if item.message_id != event.message_id)
    elif known:
        items = tuple(event.item if item.message_id == event.message_id else item for item in items)
    else:
        items = (*items, event.item)
    return replace(view, identity=event.session, revision=event.revision, items=items)


def fold(view: View, events: Iterable[Event]) -> View | Gap:
    """The view after all events of its Session, in order; `Gap` as soon as one does not follow."""
    for event in events:
        folded = apply(view, event)
        if isinstance(folded, Gap):
            return folded
        view = folded
    return view
