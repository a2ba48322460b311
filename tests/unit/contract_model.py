"""The contract once more, as a plain program over dicts, and a store made of dicts: what the core is tested against."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from feedback.commands import Command, PutCommand
from feedback.errors import FeedbackError, LogCorrupt, LogUnreadable
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from persistence.sidecar.store import (
    Change,
    CommandRecord,
    DeleteItem,
    PutItem,
    Snapshot,
    StartSession,
    StoredSession,
)

MAX_NOTE_BYTES = 4


class Log(Struct, frozen=True):
    """A Session's log as the barrier found it."""

    identity: SessionIdentity
    messages: frozenset[str]

    def eligible(self, message_id: str) -> bool:
        return message_id in self.messages


UNREADABLE = LogUnreadable("s", "/p", "EIO")
CORRUPT = LogCorrupt("s", "/p", "checksum")

World = Log | FeedbackError | None

Expected = tuple[str, Any]
"""("answered", event members) or ("refused" | "deferred", the failure's name)."""


class ContractModel:
    """One answer per command, from the contract's text alone."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, tuple[object, dict[str, Any] | None]] = {}
        """Payload and event members of each command; none of one that was told that it never will be applied."""
        self.sequences: dict[PartitionId, int] = {}
        self.blocked: set[str] = set()
        self.deadlines: dict[str, int] = {}

    def current(self, session_id: str, message_id: str, world: World) -> dict[str, Any] | None:
        """The item that counts, as JSON members."""
        session = self.sessions.get(session_id)
        if session is None or not isinstance(world, Log) or session["identity"] != world.identity:
            return None
        item: dict[str, Any] | None = session["items"].get(message_id)
        return item

    def expect(self, command: Command, partition: PartitionId, world: World, now: int, version: str) -> Expected:
        """What must become of the command, which takes effect here."""
        payload = payload_of(command)
        if command.session_id in self.blocked:
            return "deferred", "LogUnreadable"
        if command.command_id in self.answers:
            return self._again(command, payload)
        if now > command.expires_at:
            self.answers[command.command_id] = payload, None
            self._outlive(command)
            return "refused", "CommandExpired"
        error = note_error(command)
        if error is None and isinstance(world, FeedbackError):
            if world is UNREADABLE:
                self.blocked.add(command.session_id)
                return "deferred", "LogUnreadable"
            return "refused", "LogCorrupt"
        members = {"error": error} if error else self._effect(command, world, now, version)
        members |= self._position(command, partition, world)
        self.answers[command.command_id] = (payload, members)
        self._outlive(command)
        return "answered", members

    def _again(self, command: Command, payload: object) -> Expected:
        known, members = self.answers[command.command_id]
        if known != payload:
            return "refused", "CommandIdReused"
        if members is None:
            return "refused", "CommandExpired"
        self._outlive(command)
        return "answered", members

    def _outlive(self, command: Command) -> None:
        """A record outlives every copy's deadline."""
        self.deadlines[command.command_id] = max(command.expires_at, self.deadlines.get(command.command_id, 0))

    def _position(self, command: Command, partition: PartitionId, world: World) -> dict[str, Any]:
        self.sequences[partition] = sequence = self.sequences.get(partition, 0) + 1
        session = self.sessions.get(command.session_id)
        return {
            "sequence": sequence,
            "revision": session["revision"] if session else 0,
            "identity": world.identity if isinstance(world, Log) else None,
        }

    def _effect(self, command: Command, world: World, now: int, version: str) -> dict[str, Any]:
        if not isinstance(world, Log):
            return {"error": {"code": "session-not-found", "sessionId": command.session_id}}
        current = self.current(command.session_id, command.message_id, world)
        if isinstance(command, PutCommand):
            return self._put(command, world, current, now, version)
        if current is None:
            return {"type": "feedback.unchanged", "item": None}
        if command.if_version != current["version"]:
            return {"error": {"code": "version-conflict", "current": current}}
        self._items(command.session_id, world).pop(command.message_id)
        self.sessions[command.session_id]["revision"] += 1
        return {"type": "feedback.deleted", "item": None}

    def _put(
        self, command: PutCommand, world: Log, current: dict[str, Any] | None, now: int, version: str
    ) -> dict[str, Any]:
        if command.message_id not in world.messages:
            where = {"sessionId": command.session_id, "messageId": command.message_id}
            return {"error": {"code": "target-not-found"} | where}
        if command.if_version != (current["version"] if current else None):
            return {"error": {"code": "version-conflict", "current": current}}
        if current and current["rating"] == command.rating and current.get("note") == command.note:
            return {"type": "feedback.unchanged", "item": current}
        item: dict[str, Any] = {"messageId": command.message_id, "rating": command.rating}
        item |= {} if command.note is None else {"note": command.note}
        item |= {"version": version}
        item["createdAt"] = current["createdAt"] if current else now
        item["updatedAt"] = max(now, current["updatedAt"]) if current else now
        self._items(command.session_id, world)[command.message_id] = item
        self.sessions[command.session_id]["revision"] += 1
        return {"type": "feedback.put", "item": item}

    def _items(self, session_id: str, log: Log) -> dict[str, dict[str, Any]]:
        session = self.sessions.setdefault(session_id, {"identity": log.identity, "items": {}, "revision": 0})
        if session["identity"] != log.identity:
            session |= {"identity": log.identity, "items": {}}
        items: dict[str, dict[str, Any]] = session["items"]
        return items


def payload_of(command: Command) -> object:
    """What makes two commands the same: all that they say, but id and deadline."""
    said = (command.session_id, command.message_id, command.if_version, command.actor)
    return (*said, command.rating, command.note) if isinstance(command, PutCommand) else said


def note_error(command: Command) -> dict[str, Any] | None:
    """Rule 2, for the notes that the tests use."""
    if not isinstance(command, PutCommand) or command.note is None:
        return None
    if command.note in ("", " ", "\ufeff", "      "):
        return {"code": "note-blank"}
    size = len(command.note.encode())
    too_large = {"code": "note-too-large", "maxBytes": MAX_NOTE_BYTES, "actualBytes": size}
    return too_large if size > MAX_NOTE_BYTES else None


class DictStore:
    """The sidecar store's promises on dicts; it refuses what a real one refuses."""

    def __init__(self) -> None:
        self.sessions: dict[str, StoredSession] = {}
        self.items: dict[str, dict[str, Item]] = {}
        self.records: dict[str, CommandRecord] = {}
        self.sequences: dict[PartitionId, int] = {}

    def load(self, command_ids: Iterable[str], targets: Iterable[tuple[str, str]]) -> Snapshot:
        """Only what was asked for."""
        targets = list(targets)
        return Snapshot(
            records={key: self.records[key] for key in command_ids if key in self.records},
            sessions={key: self.sessions[key] for key, _ in targets if key in self.sessions},
            items={(key, name): self.items[key][name] for key, name in targets if name in self.items.get(key, {})},
        )

    def apply(self, changes: Sequence[Change], records: Sequence[CommandRecord], deadlines: Mapping[str, int]) -> None:
        """Changes in order; sequences and revisions must be dense."""
        for change in changes:
            self._change(change)
        for record in records:
            assert record.command_id not in self.records, "a command is recorded once"
            if record.is_expired:
                self.records[record.command_id] = record
                continue
            assert record.sequence == self.sequences.get(record.partition, 0) + 1, "sequences are dense"
            self.sequences[record.partition] = record.sequence
            self.records[record.command_id] = record
        for command_id, deadline in deadlines.items():
            record = self.records[command_id]
            self.records[command_id] = replaced(record, max(record.expires_at, deadline))

    def _change(self, change: Change) -> None:
        stored = self.sessions.get(change.session_id)
        if isinstance(change, StartSession):
            assert stored is None or stored.identity != change.identity, "a row is replaced by another life's"
            revision = 0 if stored is None else stored.revision
            self.sessions[change.session_id] = StoredSession(change.identity, revision)
            self.items[change.session_id] = {}
            return
        assert stored is not None, "a change belongs to a Session's row"
        assert change.revision == stored.revision + 1, "revisions are dense"
        self.sessions[change.session_id] = StoredSession(stored.identity, change.revision)
        match change:
            case PutItem(item=item):
                self.items[change.session_id][item.message_id] = item
            case DeleteItem(message_id=message_id):
                del self.items[change.session_id][message_id]


def replaced(record: CommandRecord, expires_at: int) -> CommandRecord:
    """The record with another deadline."""
    members = {name: getattr(record, name) for name in record.__struct_fields__}
    return CommandRecord(**(members | {"expires_at": expires_at}))
