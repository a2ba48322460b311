"""Who can tell which life a Session is in."""

from typing import Protocol

from feedback.model import SessionIdentity


class SessionIdentities(Protocol):
    """Tells which life a Session is in, from its log. Called from several threads.

    `persistence.session_log.SessionLogs` is one, for a host that sees the log root.
    """

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, if that can be told at once; None says nothing. Raises nothing."""
        ...

    def identity(self, session_id: str) -> SessionIdentity | None:
        """The Session's current identity, which may mean to read its log; None when there is no such Session.

        Raises:
            LogFailure: the Session's log cannot be inspected.
        """
        ...
