"""Walking the store and the logs, Session by Session, into an output."""

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from app.training import records
from app.training.filters import Filters
from app.training.output import Output, Record, Skipped
from app.training.source import SessionOrder, actors_of
from feedback.errors import LogFailure, LogUnreadable
from feedback.model import Item
from persistence.session_log import SessionLogs
from persistence.session_log.jsontext import well_formed
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import SessionFeedback
from persistence.transcripts import open_transcript


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that decides which bytes an export writes, the store's and the logs' content aside.

    `store` is the store's place, without credentials (`source.place_of`): what they are decides nothing.
    """

    format: str
    pairs: bool
    filters: Filters
    store: str
    sessions: str
    schema: int = records.SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """What an interrupted export is recognised by: equal plans have equal ones."""
        return blake2b(msgspec.json.encode(self), digest_size=16).hexdigest()


def export(
    store: SidecarStore,
    logs: SessionLogs,
    plan: Plan,
    output: Output,
    *,
    on_session: Callable[[int, int, Skipped | None], None],
) -> None:
    """Write the records of every stored Session behind the output's checkpoint, ordered by Session id, then by log.

    A Session whose log is missing, damaged or unreadable is skipped, as a whole. `on_session` hears after each one
    how many of how many are done, and whether it was skipped. What happened is in the output's tally.

    Raises:
        StoreUnavailable, LogUnreadable: in the middle (of logs: their root is out of reach, or one failed behind its
            first record); the same export may go on later from the checkpoint.
        OSError: the output cannot be written.
    """
    checkpoint = output.checkpoint
    with SessionOrder(store) as order:
        total, left = order.count(), order.count(after=checkpoint.last_session)
        for done, session_id in enumerate(order.after(checkpoint.last_session), start=total - left + 1):
            skipped = _export_session(store, logs, plan, output, session_id)
            checkpoint.tally.sessions += 1
            if skipped is not None:
                checkpoint.tally.skip(skipped)
            output.end_session(session_id)
            on_session(done, total, skipped)
    output.finish()


def _export_session(
    store: SidecarStore, logs: SessionLogs, plan: Plan, output: Output, session_id: str
) -> Skipped | None:
    """Writes one Session's records, or says why there are none. Raises as `export`."""
    stored = store.feedback(session_id)
    items = {item.message_id: item for item in stored.items if plan.filters.take_item(item)} if stored else {}
    if stored is None or not items or not plan.filters.take_project(stored.identity.cwd):
        return None
    before = output.checkpoint.tally.records
    try:
        skipped = _export_log(store, logs, plan, output, stored, items=items)
    except LogFailure as failure:
        if output.checkpoint.tally.records > before:
            # It was whole a moment ago. What is written of it counts only once it is complete.
            reason = f"it changed or broke while it was exported: {failure.reason}"
            raise LogUnreadable(session_id, failure.path, reason) from failure
        skipped = Skipped(session_id, failure.code, well_formed(str(failure)))
    if skipped is not None and not _holds_logs(logs.root):
        raise LogUnreadable(session_id, str(logs.root), "the root of the logs is empty or out of reach: is it mounted?")
    return skipped


def _export_log(
    store: SidecarStore,
    logs: SessionLogs,
    plan: Plan,
    output: Output,
    stored: SessionFeedback,
    *,
    items: dict[str, Item],
) -> Skipped | None:
    """The records of those items; why there are none when the log is missing. Raises LogFailure."""
    tally = output.checkpoint.tally
    view = logs.inspect(stored.session_id)  # the whole log is sound, or nothing of it is written
    if view is None:
        return Skipped(stored.session_id, "session-not-found", "there is no log of this Session")
    if view.identity != stored.identity:
        tally.stale += 1
        return None
    known = {message_id: item for message_id, item in items.items() if view.eligible(message_id)}
    for record in _records(store, logs, plan, stored, known):
        output.write(record)
        tally.records += 1
    tally.unknown += len(items) - len(known)
    return None


def _holds_logs(root: Path) -> bool:
    """Whether there is anything at all under the root; else no Session is to blame for what is not found."""
    try:
        with os.scandir(root) as entries:
            return any(entries)
    except OSError:
        return False


def _records(
    store: SidecarStore, logs: SessionLogs, plan: Plan, stored: SessionFeedback, items: dict[str, Item]
) -> Iterator[Record]:
    actors = actors_of(store, stored.session_id, {item.version for item in items.values()})
    session = records.Session(
        session_id=stored.session_id, created_at=stored.identity.created_at, cwd=stored.identity.cwd
    )
    with open_transcript(logs, stored.session_id) as transcript:
        if transcript is None or transcript.identity != stored.identity:
            raise LogUnreadable(stored.session_id, str(logs.root), "another log took its place while it was exported")
        found = records.answers(session, transcript.appearing(opaque=False), items, actors, plan.filters)
        yield from records.pairs(found) if plan.pairs else found
