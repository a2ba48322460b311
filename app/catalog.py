"""Sessions with their messages and current feedback: what there is to rate."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from app.home import data_flag
from feedback.errors import FeedbackError, LogFailure, SettingsInvalid, StoreUnavailable
from feedback.model import Item, SessionIdentity
from persistence.session_log import LogEntry, MessageSummary, SessionLogs
from persistence.sidecar import SidecarStore, find_store, public_url

_NEAR = 5


class MessageLine(Struct, frozen=True, rename="camel"):
    """One message: `text` is its beginning, `feedback` what is stored about it now."""

    message_id: str
    role: Literal["user", "assistant"]
    text: str
    feedback: Item | None


class ReadError(Struct, frozen=True):
    """Why a log could not be read: the failure's name in the contract, and its sentence."""

    code: str
    message: str


class SessionLine(Struct, frozen=True, kw_only=True, rename="camel"):
    """One Session. One whose log cannot be read has an `error` and hides no other."""

    session_id: str
    created_at: int | None = None
    cwd: str | None = None
    messages: tuple[MessageLine, ...] = ()
    error: ReadError | UnsetType = UNSET


class SessionPage(Struct, frozen=True):
    """A page of Sessions; `next` continues behind it and is absent on the last one."""

    sessions: tuple[SessionLine, ...]
    next: str | UnsetType = UNSET


def check_root(root: str, data: Path | None = None) -> Path:
    """The root of the Session logs, as a path. `data` is the home that it may follow from, for the message.

    Raises:
        SettingsInvalid: it is not there, no directory, or not readable.
    """
    try:
        with os.scandir(root):
            return Path(root)
    except OSError as error:
        follows = data is not None and Path(root) == data.absolute() / "sessions"
        hint = "; name the home of a system by --data, or the root of the logs by --sessions" if follows else ""
        raise SettingsInvalid(f"sessions: {root}: {error.strerror}{hint}") from None


def session_page(logs: SessionLogs, store: SidecarStore | None, *, after: str | None, limit: int) -> SessionPage:
    """Up to `limit` Sessions behind the cursor `after`, ordered by directory. Without a store nothing is rated.

    Raises:
        LogUnreadable: the root cannot be read.
        StoreUnavailable: feedback cannot be read.
    """
    entries = logs.sessions(after=after, limit=limit + 1)
    page = tuple(_session(logs, store, entry) for entry in entries[:limit])
    return SessionPage(page, entries[limit - 1].cursor if len(entries) > limit else UNSET)


def first_unrated(logs: SessionLogs, store: SidecarStore | None) -> tuple[str, str] | None:
    """A Session and a message of it that can be rated and is not yet, for examples; None when none is near.

    Their ids can be typed: nothing unprintable in them, and no dash at the beginning.
    """
    for entry in logs.sessions(limit=_NEAR):
        try:
            view = logs.inspect(entry.session_id)
            rated = _items(store, entry.session_id, view.identity) if view else {}
            for message in logs.messages(entry.session_id):
                ids = entry.session_id, message.message_id
                if message.eligible and message.message_id not in rated and all(map(_is_typable, ids)):
                    return ids
        except FeedbackError:
            continue
    return None


def _is_typable(name: str) -> bool:
    return name.isprintable() and not name.startswith("-")


def require_store(url: str, data: Path) -> SidecarStore:
    """The store of a deployment that is to have one, for a command that was given `data`.

    Raises:
        StoreUnavailable: there is none; the message says who makes it, and how another is named.
        As well as `open_store`.
    """
    store = find_store(url)
    if store is None:
        raise StoreUnavailable(
            f"no store at {public_url(url)}: --data or --sidecar-url names another; `feedback up {data_flag(data)}` or"
            " a worker makes one"
        )
    return store


def open_existing_store(url: str) -> SidecarStore | None:
    """The store, or None when none was ever made: looking must not make one. Raises as `open_store`."""
    return find_store(url)


def _session(logs: SessionLogs, store: SidecarStore | None, entry: LogEntry) -> SessionLine:
    session_id = entry.session_id
    if session_id != _well_formed(session_id):
        error = ReadError("InvalidRequest", f"the id is not well-formed Unicode, no request can name it ({entry.path})")
        return SessionLine(session_id=_well_formed(session_id), error=error)
    try:
        view = logs.inspect(session_id)
        if view is None:
            reason = f"the log has no complete header ({entry.path})"
            return SessionLine(session_id=session_id, error=ReadError("session-not-found", reason))
        items = _items(store, session_id, view.identity)
        messages = tuple(_message(message, items) for message in logs.messages(session_id))
    except LogFailure as error:
        return SessionLine(session_id=session_id, error=ReadError(error.code, _well_formed(str(error))))
    cwd = view.identity.cwd and _well_formed(view.identity.cwd)
    return SessionLine(session_id=session_id, created_at=view.identity.created_at, cwd=cwd, messages=messages)


def _items(store: SidecarStore | None, session_id: str, identity: SessionIdentity) -> Mapping[str, Item]:
    """Stored feedback by message id; that of another life of the Session counts as absent (CONTRACT)."""
    stored = store.feedback(session_id) if store else None
    if stored is None or stored.identity != identity:
        return {}
    return {item.message_id: item for item in stored.items}


def _message(message: MessageSummary, items: Mapping[str, Item]) -> MessageLine:
    rated = items.get(message.message_id) if message.eligible else None
    return MessageLine(_well_formed(message.message_id), message.role, _well_formed(message.text), rated)


def _well_formed(text: str) -> str:
    """Text of logs may hold lone surrogates, which JSON for others must not."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
