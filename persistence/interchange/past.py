"""What a Session's history, as far as it is kept, knows of items that are not here any more.

The store keeps no trace of a deleted item but the record of its deletion, which stays for `command_retention` at least.
"""

from feedback.events import Event, FeedbackDeleted, FeedbackPut, decode_event
from feedback.model import Item, SessionIdentity
from persistence.sidecar.store import HISTORY_START, SessionFeedback, SidecarStore

_PAGE = 1000
_NEVER = -1


class Past:
    """One Session's material changes, noted in their order. Times in milliseconds since the Unix epoch."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._read_to = HISTORY_START
        self._changes = 0
        self._put: dict[tuple[SessionIdentity | None, str], int] = {}
        """The `updatedAt` of what was put last."""
        self._deleted: dict[tuple[SessionIdentity | None, str], int] = {}

    def read_on(self, store: SidecarStore) -> None:
        """Note what was recorded since it was read last: history only grows at its end.

        Raises:
            StoreUnavailable
        """
        while page := store.history(self.session_id, self._read_to, _PAGE):
            for outcome in page:
                self.note(decode_event(outcome.event))
            self._read_to = page[-1].position
            if len(page) < _PAGE:
                break

    def note(self, event: Event) -> None:
        """The next event of the Session."""
        key = (event.session, event.message_id)
        if isinstance(event, FeedbackPut):
            self._put[key] = event.item.updated_at
        elif isinstance(event, FeedbackDeleted):
            # A deletion is newer than what it deleted, whichever clock that was written by.
            self._deleted[key] = max(event.occurred_at, self._put.get(key, _NEVER))
        else:
            return
        self._changes += 1

    def outdates(self, identity: SessionIdentity, item: Item) -> bool:
        """Whether an item of that life was deleted later than this one was updated (at a tie, what was done here
        counts)."""
        return self._deleted.get((identity, item.message_id), _NEVER) >= item.updated_at

    def last_deletion(self, identity: SessionIdentity) -> int:
        """When something was last deleted in that life; -1: nothing is known to have been."""
        return max((when for (life, _), when in self._deleted.items() if life == identity), default=_NEVER)

    def is_whole(self, stored: SessionFeedback) -> bool:
        """Whether no deletion can have been forgotten: each of the Session's revisions is either one that the history
        has, or made an item that is still here."""
        unmentioned = sum((stored.identity, item.message_id) not in self._put for item in stored.items)
        return stored.revision <= self._changes + unmentioned
