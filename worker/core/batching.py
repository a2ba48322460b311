"""A whole batch, decided in memory: gather (the store's snapshot) -> decide (here) -> apply (the store).

Pure. Commands of one Session see each other's effects in queue order; every outcome gets the next number
of its partition's dense sequence; a command that was applied before is answered from its record.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from barrier.rules import Barrier
from feedback.commands import Command
from feedback.errors import CommandExpired, CommandIdReused, Disposition, FeedbackError, InvalidRequest
from feedback.events import (
    Event,
    FeedbackDeleted,
    FeedbackPut,
    FeedbackRejected,
    FeedbackUnchanged,
    decode_event,
    encode_event,
)
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar.store import (
    EXPIRED,
    Change,
    CommandRecord,
    DeleteItem,
    PutItem,
    Snapshot,
    StartSession,
    StoredSession,
)
from worker.core.rules import Fail, Keep, Reject, Remove, Verdict, Write, decide

CLOCK_SLACK_MS = 3600 * 1000
"""How much a host's clock may be ahead of a worker's, as far as deadlines are concerned."""


class Pending(Struct, frozen=True, kw_only=True):
    """One command with all that deciding it takes."""

    command: Command
    digest: bytes
    partition: PartitionId
    epoch: int
    barrier: Barrier
    version: str
    """A fresh random version, used if the command writes."""


class Answered(Struct, frozen=True):
    """The command has its outcome: recorded now, or long ago (a redelivery).

    `sequence` is the event's place in the stream of the command's partition, 0 when it belongs to another one.
    """

    event: Event
    sequence: int
    encoded: bytes


class Refused(Struct, frozen=True):
    """A final failure: to the caller and the failed registry. Nothing is recorded."""

    error: FeedbackError


class Deferred(Struct, frozen=True):
    """A retryable failure, of this command or of one before it in its Session: it waits, in order."""

    error: FeedbackError


Outcome: TypeAlias = Answered | Refused | Deferred


class Decisions(Struct, frozen=True):
    """`outcomes` matches the commands given; the rest is what the store must apply."""

    outcomes: tuple[Outcome, ...]
    changes: tuple[Change, ...]
    records: tuple[CommandRecord, ...]
    deadlines: Mapping[str, int]
    expired: tuple[CommandRecord, ...] = ()
    """Of commands that are told that they expired: that is so for good, whatever the next worker's clock says."""


def decide_batch(
    snapshot: Snapshot,
    batch: Sequence[Pending],
    sequences: Mapping[PartitionId, int],
    *,
    now_ms: int,
    max_note_bytes: int,
    retention_ms: int,
) -> Decisions:
    """Decide commands in queue order.

    `sequences` holds each partition's last committed sequence; `now_ms` is in milliseconds since the epoch. A new
    command's deadline may lie `retention_ms` ahead, and as much more as clocks may differ.
    """
    limits = _Limits(now_ms, now_ms + retention_ms + CLOCK_SLACK_MS, max_note_bytes)
    state = _State(snapshot, sequences, limits)
    outcomes = tuple(state.outcome(pending) for pending in batch)
    return Decisions(outcomes, tuple(state.changes), tuple(state.records), state.deadlines, tuple(state.expired))


class _Limits(Struct, frozen=True):
    """The time, how far ahead a deadline may lie (both in milliseconds), and how large a note may be."""

    now_ms: int
    latest_ms: int
    max_note_bytes: int


class _State:
    """The snapshot, as the batch's commands change it one after the other."""

    def __init__(self, snapshot: Snapshot, sequences: Mapping[PartitionId, int], limits: _Limits) -> None:
        self._known = dict(snapshot.records)
        self._sessions = dict(snapshot.sessions)
        self._items: dict[tuple[str, str], Item] = dict(snapshot.items)
        self._sequences = dict(sequences)
        self._limits = limits
        self._blocked: dict[str, FeedbackError] = {}
        self.changes: list[Change] = []
        self.records: list[CommandRecord] = []
        self.expired: list[CommandRecord] = []
        self.deadlines: dict[str, int] = {}

    def outcome(self, pending: Pending) -> Outcome:
        command = pending.command
        if (blocking := self._blocked.get(command.session_id)) is not None:
            return Deferred(blocking)
        if (record := self._known.get(command.command_id)) is not None:
            return self._recorded(pending, record)
        if (overdue := self._refused_for_its_deadline(pending)) is not None:
            return Refused(overdue)
        verdict = decide(
            command,
            pending.barrier,
            self._current(pending),
            now_ms=self._limits.now_ms,
            version=pending.version,
            max_note_bytes=self._limits.max_note_bytes,
        )
        if isinstance(verdict, Fail):
            if verdict.error.disposition is Disposition.RETRYABLE:
                self._blocked[command.session_id] = verdict.error
                return Deferred(verdict.error)
            return Refused(verdict.error)
        return self._record(pending, verdict)

    def _refused_for_its_deadline(self, pending: Pending) -> FeedbackError | None:
        command = pending.command
        if command.expires_at > self._limits.latest_ms:
            return InvalidRequest("$.expiresAt", "later than the command retention allows")
        if command.expires_at >= self._limits.now_ms:
            return None
        record = CommandRecord(
            command_id=command.command_id,
            partition=PartitionId(EXPIRED, pending.partition.number),
            sequence=0,
            session_id=command.session_id,
            digest=pending.digest,
            event=b"",
            applied_at=self._limits.now_ms,
            expires_at=command.expires_at,
        )
        self._known[command.command_id] = record
        self.expired.append(record)
        return expired(command.command_id)

    def _recorded(self, pending: Pending, record: CommandRecord) -> Outcome:
        command = pending.command
        if record.digest != pending.digest:
            return Refused(
                CommandIdReused(f"command id {command.command_id} was used with another payload; use a new id")
            )
        if command.expires_at > record.expires_at and not record.is_expired:
            # The record must outlive this copy's deadline too.
            self.deadlines[command.command_id] = min(command.expires_at, self._limits.latest_ms)
        if record.is_expired:
            return Refused(expired(command.command_id))
        # Applied under another number of partitions: its event stands in a stream of that generation.
        sequence = record.sequence if record.partition == pending.partition else 0
        return Answered(decode_event(record.event), sequence, record.event)

    def _current(self, pending: Pending) -> Item | None:
        """The item of the current identity: a row of another one counts as absent."""
        command = pending.command
        stored = self._sessions.get(command.session_id)
        if stored is None or stored.identity != _identity(pending.barrier):
            return None
        return self._items.get((command.session_id, command.message_id))

    def _record(self, pending: Pending, verdict: Verdict) -> Answered:
        command, partition = pending.command, pending.partition
        identity = _identity(pending.barrier)
        revision = self._apply(command, identity, verdict)
        sequence = self._sequences[partition] + 1
        self._sequences[partition] = sequence
        event = _event(
            verdict,
            event_id=f"{partition}-{sequence}",
            command_id=command.command_id,
            session_id=command.session_id,
            session=identity,
            revision=revision,
            message_id=command.message_id,
            actor=command.actor,
            traceparent=command.traceparent,
            occurred_at=self._limits.now_ms,
            partition=partition.number,
            epoch=pending.epoch,
        )
        encoded = encode_event(event)
        record = CommandRecord(
            command_id=command.command_id,
            partition=partition,
            sequence=sequence,
            session_id=command.session_id,
            digest=pending.digest,
            event=encoded,
            applied_at=self._limits.now_ms,
            expires_at=command.expires_at,
        )
        self._known[command.command_id] = record
        self.records.append(record)
        return Answered(event, sequence, encoded)

    def _apply(self, command: Command, identity: SessionIdentity | None, verdict: Verdict) -> int:
        """Note the verdict's change; the Session's revision after it."""
        session_id = command.session_id
        stored = self._sessions.get(session_id)
        revision = 0 if stored is None else stored.revision
        if not isinstance(verdict, Write | Remove):
            return revision
        assert identity is not None, "only a Session with a log is changed"
        if stored is None or stored.identity != identity:
            self._start(session_id, identity)
        revision += 1
        self._sessions[session_id] = StoredSession(identity, revision)
        if isinstance(verdict, Write):
            self._items[session_id, command.message_id] = verdict.item
            self.changes.append(PutItem(session_id, verdict.item, revision))
        else:
            del self._items[session_id, command.message_id]
            self.changes.append(DeleteItem(session_id, command.message_id, revision))
        return revision

    def _start(self, session_id: str, identity: SessionIdentity) -> None:
        """A first row, or one that replaces another life's together with its items."""
        self.changes.append(StartSession(session_id, identity))
        for key in [key for key in self._items if key[0] == session_id]:
            del self._items[key]


def expired(command_id: str) -> CommandExpired:
    """What is said of a command whose deadline passed, whenever it is asked about."""
    return CommandExpired(f"the deadline of command {command_id} passed; nothing was applied")


def _identity(barrier: Barrier) -> SessionIdentity | None:
    return None if barrier is None or isinstance(barrier, FeedbackError) else barrier.identity


def _event(verdict: Verdict, **members: Any) -> Event:
    match verdict:
        case Write(item=item):
            return FeedbackPut(**members, item=item)
        case Remove():
            return FeedbackDeleted(**members)
        case Keep(item=item):
            return FeedbackUnchanged(**members, item=item)
        case Reject(error=error):
            return FeedbackRejected(**members, error=error)
        case Fail():
            raise AssertionError("a failure has no event")
