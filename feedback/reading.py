"""Lists by who sees the log root: the cache is read as it is, in one round trip, when that is certain to be current.

The script says so from what stands beside the list: the Session's latest revision, noted by whoever acknowledges a
command before its caller hears of it (docs/wire-format.md, "Cached lists"). Whatever else is found, or nothing:
the projector knows.
"""

import logging
import threading
import time
from functools import partial

from redis.exceptions import RedisError

from feedback import keys
from feedback.calls import Blocking, Caller, Flow
from feedback.connection import is_passing
from feedback.errors import FeedbackError, QueueUnavailable
from feedback.identities import SessionIdentities
from feedback.lists import BodyInvalid, CachedList, ListCodec
from feedback.model import SessionIdentity
from feedback.results import ItemList, Ok, Result, at_revision
from feedback.scripting import Script

_log = logging.getLogger(__name__)
_TRY_AGAIN_S = 60.0
"""After which a server that refused to give cached lists is asked again: an operator may have changed the rules."""

_read_list = Script("feedback", "read_list", read_only=True)


class _Codecs(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.codec = ListCodec()


class ListReader:
    """Reads cached lists for one client. Safe to share between threads."""

    def __init__(self, identities: SessionIdentities, caller: Caller) -> None:
        self._identities = identities
        self._caller = caller
        self._codecs = _Codecs()
        self._refused_until = float("-inf")

    def read(self, session_id: str, at_least: int | None, deadline: float) -> Flow[Result | None]:
        """A Session's list, if what is cached is current; None when the projector must be asked.

        Raises:
            QueueUnavailable: the server did not answer in time.
        """
        if time.monotonic() < self._refused_until:
            return None
        # The Session's life first: a list that is current later was so at some time after the question.
        identity = self._identities.known_identity(session_id)
        if identity is None:
            identity = yield Blocking(partial(self._looked_up, session_id))
        if identity is None:
            return None
        view = yield from self._cached(session_id, deadline)
        if view is None or view.revision < (at_least or 0):
            return None
        # At revision 0 nobody has ever rated the Session, in whatever life. Else the life must be the log's here.
        if view.revision > 0 and view.identity != identity:
            return None
        return at_revision(Ok(value=ItemList(items=view.items)), view.revision)

    def _looked_up(self, session_id: str) -> SessionIdentity | None:
        """Reads the log if need be. Why it cannot be read, the projector says."""
        try:
            return self._identities.identity(session_id)
        except FeedbackError:
            return None

    def _cached(self, session_id: str, deadline: float) -> Flow[CachedList | None]:
        names = (keys.list_cache(session_id), keys.LIST_ERA)
        try:
            reply = yield from self._caller.script(_read_list, names, (), deadline)
        except QueueUnavailable as error:
            if not isinstance(error.__cause__, RedisError) or is_passing(error.__cause__):
                raise
            _log.warning("cached lists are not read for a while, the projector is asked instead reason=%s", error)
            self._refused_until = time.monotonic() + _TRY_AGAIN_S
            return None
        if reply is None:
            return None
        try:
            return self._codecs.codec.decode(session_id, *reply)
        except BodyInvalid as error:
            _log.warning("poisoned list ignored key=%s reason=%s", names[0], error)
            return None
