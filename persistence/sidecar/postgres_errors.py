"""PostgreSQL's error codes as the contract's failures: the one place that knows both."""

from typing import NamedTuple

import psycopg
from psycopg import errors

from feedback.errors import FeedbackError, StoreMoved, StoreUnavailable

_REASONS = {
    "25006": "it takes no writes: a standby, or set to read only",
    "25P03": "the server ended a transaction that stood still for too long",
    "25P04": "the server ended a transaction that took too long",
    "40001": "another transaction was in the way",
    "40P01": "another transaction was in the way",
    "42501": "permission denied",
    "53100": "no space left on the server's disk",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left for us",
    "55P03": "locked by another transaction for too long",
    "57014": "the server ended a statement that took too long",
    "57P01": "the server is shutting down",
    "57P02": "the server has crashed",
    "57P03": "the server is starting, stopping, or a standby that takes no connections",
    "58030": "I/O error",
    "3D000": "there is no such database",
    "42P01": "its tables are gone: emptied, or moved elsewhere, while in use",
    "XX001": "corrupt",
    "XX002": "corrupt",
}
_LOGIN_REFUSED = "28"

SEALED = "FB001"
"""Our own: the store is being moved (`persistence.sidecar.transfer`)."""

_RAN_INTO_OTHERS = (errors.SerializationFailure, errors.DeadlockDetected)


class ServerSilent(psycopg.OperationalError):
    """The server has not said anything for longer than its own time limits allow."""


class Unconfirmed(psycopg.DatabaseError):
    """A commit's wait for the synchronous standby was broken off: it stands on this server, and perhaps nowhere else.

    The next commit that is confirmed confirms it too: a standby has the log without gaps.
    """


def is_collision(error: psycopg.Error) -> bool:
    """Rolled back as a whole in favour of another transaction: what is right to do again, may be done again at once."""
    return isinstance(error, _RAN_INTO_OTHERS)


def is_fatal(error: psycopg.Error) -> bool:
    """The server has ended the connection."""
    return error.diag.severity_nonlocalized in {"FATAL", "PANIC"}


def is_elsewhere(error: psycopg.Error) -> bool:
    """What we talk to is the primary, or the store, no more; connecting anew finds the one that is, or says so."""
    return isinstance(error, errors.ReadOnlySqlTransaction | errors.UndefinedTable)


class Said(NamedTuple):
    """What the server said last before it ended a connection, where the driver only knows that it ended."""

    state: str | None
    text: str


def translate(error: psycopg.Error, location: str, parting: Said | None = None) -> FeedbackError | ValueError:
    """What to raise instead, with the store's place and the reason; never with a password.

    Violated constraints and values that do not fit are the caller's mistake, hence a ValueError: a command id that
    is recorded already.
    """
    # Neither the server nor the library quotes a password.
    said = Said(error.sqlstate, error.diag.message_primary or str(error) or type(error).__name__)
    if said.state is None and parting is not None:
        said = parting
    text = " ".join(said.text.split())
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return ValueError(f"the changes contradict each other or what is stored: {text}")
    if said.state == SEALED:
        return StoreMoved(f"sidecar store {location}: {text}")
    if isinstance(error, Unconfirmed):
        reason = "no standby has confirmed the commit"
    elif said.state is None:
        reason = "out of reach" if isinstance(error, psycopg.OperationalError) else "failed"
    elif said.state.startswith(_LOGIN_REFUSED):
        reason = "the server refuses our login"
    else:
        reason = _REASONS.get(said.state, "failed")
    return StoreUnavailable(f"sidecar store {location}: {reason} ({text})")
