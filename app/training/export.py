"""Walking the store and the logs, Session by Session, into an output."""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct

from app.training import records
from app.training.filters import Filters
from app.training.output import Output, Record, Skipped
from app.training.source import SessionOrder, actors_of
from feedback.errors import Disposition, LogFailure, LogUnreadable
from feedback.model import Item
from persistence.session_log import SessionLogs
from persistence.session_log.jsontext import well_formed
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import SessionFeedback
from persistence.transcripts import open_transcript


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that decides which bytes an export writes, the store's and the logs' content aside."""

    format: str
    pairs: bool
    filters: Filters
    store: str
    sessions: str
    schema: int = records.SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """What an interrupted export is recognised by: equal plans have equal ones. Shows no password of a URL."""
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

    A Session whose log is missing or damaged is skipped, as a whole. `on_session` hears after each one how many
    of how many are done, and whether it was skipped. What happened is in the output's tally.

    Raises:
        StoreUnavailable, LogUnreadable: in the middle; the same export may go on later from the checkpoint.
        OSError: the output cannot be written.
    """
    checkpoint = output.checkpoint
    with SessionOrder(store) as order:
        total, left = order.count(), order.count(after=checkpoint.last_session)
        for done, session_id in enumerate(order.after(checkpoint.last_session), start=total - left + 1):
            try:
                skipped = _export_session(store, logs, plan, output, session_id)
            except LogFailure as failure:
                if failure.disposition is Disposition.RETRYABLE:
                    raise
                skipped = Skipped(session_id, failure.code, well_formed(str(failure)))
            checkpoint.tally.sessions += 1
            if skipped is not None:
                checkpoint.tally.skip(skipped)
            output.end_session(session_id)
            on_session(done, total, skipped)
    output.finish()


def _export_session(
    store: SidecarStore, logs: SessionLogs, plan: Plan, output: Output, session_id: str
) -> Skipped | None:
    """Writes one Session's records; why there are none when its log is missing. Raises LogFailure before the first."""
    tally = output.checkpoint.tally
    stored = store.feedback(session_id)
    items = {item.message_id: item for item in stored.items if plan.filters.take_item(item)} if stored else {}
    if stored is None or not items or not plan.filters.take_project(stored.identity.cwd):
        return None
    view = logs.inspect(session_id)  # the whole log is sound, or nothing of it is written
    if view is None:
        return Skipped(session_id, "session-not-found", "there is no log of this Session")
    if view.identity != stored.identity:
        tally.stale += 1
        return None
    known = {message_id: item for message_id, item in items.items() if view.eligible(message_id)}
    tally.unknown += len(items) - len(known)
    for record in _records(store, logs, plan, stored, known):
        output.write(record)
        tally.records += 1
    return None


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
