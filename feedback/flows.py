"""The client's protocol, once, without I/O: generators that yield what to do and are sent the reply.

`FeedbackClient` and `AsyncFeedbackClient` drive the same flows; they differ in how they wait. Every
Redis call in here may be repeated safely, so a lost answer is asked for again until the deadline.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from feedback import keys, wire
from feedback.asking import Asker
from feedback.calls import Caller, Flow, Sleep, wall_clock_ms
from feedback.commands import Command, PutCommand, command_from, parse_command_id
from feedback.connection import BLOCK_S, is_passing
from feedback.envelopes import Envelope, chunks, envelope_of
from feedback.errors import (
    CommandFailed,
    CommandIdReused,
    CommandUnknown,
    FeedbackError,
    InvalidRequest,
    QueueFull,
    QueueUnavailable,
    ResultTimeout,
)
from feedback.failures import decode_failure, error_of
from feedback.identities import SessionIdentities
from feedback.notes import is_blank, utf8_size
from feedback.partitions import TOPOLOGY_FIELDS, Topology
from feedback.reading import ListReader
from feedback.requests import Request, check_text
from feedback.results import NoteBlank, NoteTooLarge, Rejected, Result, at_revision
from feedback.scripting import Script
from feedback.uuids import ordered_uuid

_ANY_RETENTION_MS = 2**60
MAX_QUEUED = 100_000

_enqueue = Script("feedback", "enqueue")


class Submitted(Struct, frozen=True):
    """What became of one submitted request: on the queue (neither), answered at the boundary, or refused."""

    command_id: str
    result: Result | None = None
    error: FeedbackError | None = None


class Flows:
    """One client's state: the topology it knows, and whether the server ever answered."""

    def __init__(
        self,
        *,
        block_s: float = BLOCK_S,
        max_queued: int = MAX_QUEUED,
        clock_ms: Callable[[], int] = wall_clock_ms,
        logs: SessionIdentities | None = None,
        host: str | None = None,
    ) -> None:
        self._host = host
        self._block_s = block_s
        self._max_queued = max_queued
        self._clock_ms = clock_ms
        self._topology: Topology | None = None
        self._caller = Caller()
        self._asker = Asker(self._caller, block_s, host)
        self._reader = None if logs is None else ListReader(logs, self._caller)

    def submit(
        self,
        requests: Sequence[Request],
        deadline: float,
        *,
        durable: bool = False,
        traceparent: str | None = None,
    ) -> Flow[list[Submitted]]:
        """Check all requests, then enqueue them in order; `deadline` on the monotonic clock.

        `durable`: have the server put them on its stable storage first (`WAITAOF`). `traceparent`: the trace that they
        are part of.

        Raises:
            InvalidRequest: one of them is malformed; nothing was enqueued.
            QueueUnavailable: the server did not take them in time; with the ids that they have.
        """
        now_ms, ids = self._clock_ms(), [ordered_uuid() for _ in requests]
        commands = self._commands(requests, ids, now_ms, traceparent)
        if self._topology is None and any(map(_goes_out, commands)):
            # What is wrong anywhere is said without asking anybody; the deployment's own bounds come second.
            for command in commands:
                if not isinstance(command, PutCommand) or command.note is None:
                    envelope_of(command)
            yield from self._load_topology(deadline)
            commands = self._commands(requests, ids, now_ms, traceparent)
        outcomes: dict[int, Submitted] = {}
        accepted: list[tuple[int, Envelope]] = []
        for index, command in enumerate(commands):
            refused = yield from self._note_rejection(command, deadline)
            if refused is None:
                accepted.append((index, envelope_of(command)))
            else:
                outcomes[index] = Submitted(command.command_id, result=refused)
        for chunk in chunks(accepted):
            try:
                replies = yield from self._enqueue([envelope for _, envelope in chunk], deadline, durable=durable)
            except QueueUnavailable as error:
                error.note_commands(command.command_id for command in commands)
                raise
            for (index, envelope), reply in zip(chunk, replies, strict=True):
                outcomes[index] = Submitted(envelope.command_id, error=_refusal(envelope.command_id, reply))
        return [outcomes[index] for index in range(len(commands))]

    def _commands(
        self, requests: Sequence[Request], ids: Sequence[str], now_ms: int, traceparent: str | None
    ) -> list[Command]:
        retention_ms = _ANY_RETENTION_MS if self._topology is None else 1000 * self._topology.command_retention
        return [
            command_from(
                request,
                now_ms=now_ms,
                new_id=new_id,
                retention_ms=retention_ms,
                host=self._host,
                traceparent=traceparent,
            )
            for request, new_id in zip(requests, ids, strict=True)
        ]

    def wait(self, command_id: str, timeout: float) -> Flow[Result]:
        """Wait for a command's answer; `timeout` in seconds.

        Raises:
            ResultTimeout: none came in time.
            QueueUnavailable: the server refuses to answer.
            FeedbackError: the command failed; the contract's typed failure.
        """
        deadline = time.monotonic() + timeout
        try:
            result = yield from self._awaited(command_id, deadline)
        except QueueUnavailable as error:
            # The command was accepted before: a server that went away since leaves its outcome open.
            if not (self._caller.connected and isinstance(error.__cause__, RedisError) and is_passing(error.__cause__)):
                raise
            raise ResultTimeout(command_id, timeout) from error
        if result is None:
            raise ResultTimeout(command_id, timeout)
        return result

    def _awaited(self, command_id: str, deadline: float) -> Flow[Result | None]:
        """A command's answer, None when none came in time."""
        last = b"0-0"
        while True:
            # An answer may lie there already: look at least once, even with no time left.
            block_ms = max(1, int(1000 * min(self._block_s, deadline - time.monotonic())))
            stream = keys.results(command_id)
            reply: Any = yield from self._caller.call(("XREAD", "BLOCK", block_ms, "STREAMS", stream, last), deadline)
            if entries := _stream_entries(reply):
                last, fields = entries[-1]
                result = yield from self._outcome(command_id, fields, deadline)
                if result is not None:
                    return result
            elif time.monotonic() >= deadline:
                return None

    def list_feedback(self, session_id: str, at_least: int | None, timeout: float) -> Flow[Result]:
        """The contract's `list`, from the cache by who sees the log root, else answered by the projector.

        Raises:
            InvalidRequest: `session_id` or `at_least` is malformed.
            QueueUnavailable: no projector answered in time.
            FeedbackError: the Session's log or the store could not answer.
        """
        if not isinstance(session_id, str):
            raise InvalidRequest("$.sessionId", f"expected a string, got {type(session_id).__name__}")
        check_text("$.sessionId", session_id)
        if at_least is not None and (not _is_revision(at_least)):
            raise InvalidRequest("atLeast", "expected a revision: a whole number, 0 or more")
        deadline = time.monotonic() + timeout
        if self._reader is not None:
            found = yield from self._reader.read(session_id, at_least, deadline)
            if found is not None:
                return found
        return (yield from self._asker.list(session_id, at_least, deadline, missed=self._reader is not None))

    def outcome(self, command_id: object, timeout: float) -> Flow[Result]:
        """The answer to a command that was submitted before, by anyone.

        Raises:
            CommandUnknown: it is neither waiting nor recorded.
        """
        known = parse_command_id(command_id)
        deadline = time.monotonic() + timeout
        if (yield from self._caller.call(("EXISTS", keys.job(known), keys.results(known)), deadline)):
            try:
                return (yield from self.wait(known, _half(deadline)))
            except CommandIdReused:
                pass  # what stands there is the refusal of a later use; the record has the answer to the first one
            except ResultTimeout:
                # Redis may have lost the answer, or the queue; the store has what was applied.
                try:
                    return (yield from self._asker.recorded(known, time.monotonic() + _half(deadline)))
                except (CommandUnknown, QueueUnavailable):
                    return (yield from self.wait(known, max(0.0, deadline - time.monotonic())))
        return (yield from self._asker.recorded(known, deadline))

    def _note_rejection(self, command: Command, deadline: float) -> Flow[Result | None]:
        """The contract's rule 2, at the boundary: a refused note is never sent anywhere."""
        if not isinstance(command, PutCommand) or command.note is None:
            return None
        if is_blank(command.note):
            return Rejected(error=NoteBlank())
        size = utf8_size(command.note)
        topology = yield from self._known_topology(deadline)
        if size > topology.max_note_bytes:
            # The bound may have been raised since we asked.
            topology = yield from self._load_topology(deadline)
        if size > topology.max_note_bytes:
            return Rejected(error=NoteTooLarge(max_bytes=topology.max_note_bytes, actual_bytes=size))
        return None

    def _enqueue(self, envelopes: Sequence[Envelope], deadline: float, *, durable: bool) -> Flow[list[bytes]]:
        while True:
            # On the connection of the enqueueing: WAITAOF is about what came in on that.
            fsync = (("WAITAOF", 1, 0, _left_ms(deadline)),) if durable else ()
            topology = yield from self._known_topology(deadline)
            args: list[Any] = [
                topology.generation,
                topology.partitions,
                self._max_queued,
                wire.rq_now(),
                keys.RQ_JOB_PREFIX,
                keys.queue_prefix(topology.generation),
                keys.queue_name_prefix(topology.generation),
                keys.owners(topology.generation),
                keys.WAKE_PREFIX,
                keys.WAKE_TTL_S,
                keys.claimed_prefix(topology.generation),
                keys.RQ_RESULTS_PREFIX,
            ]
            for envelope in envelopes:
                number = topology.partition_of(envelope.session_id).number
                args += (envelope.command_id, number, envelope.data, envelope.digest, envelope.description)
                args.append(keys.session_digest(envelope.session_id))
            reply = yield from self._caller.script(
                _enqueue, (keys.TOPOLOGY, keys.RQ_QUEUES), args, deadline, then=fsync
            )
            if durable:
                reply, (fsynced, _) = reply
                if not fsynced and time.monotonic() < deadline:
                    continue
                if not fsynced:
                    raise QueueUnavailable("enqueued, but the server did not put it on stable storage in time")
            if isinstance(reply, list):
                return reply
            if time.monotonic() > deadline:
                raise QueueUnavailable("the topology went on changing; nothing was enqueued")
            yield from self._load_topology(deadline)

    def _known_topology(self, deadline: float) -> Flow[Topology]:
        return self._topology or (yield from self._load_topology(deadline))

    def _load_topology(self, deadline: float) -> Flow[Topology]:
        delay = 0.02
        while True:
            reply = yield from self._caller.call(("HMGET", keys.TOPOLOGY, *TOPOLOGY_FIELDS), deadline)
            try:
                topology = Topology.of_fields(reply)
            except ValueError:
                raise QueueUnavailable(f"the topology on this server is not readable: {reply!r:.100}") from None
            if topology is not None:
                self._topology = topology
                return topology
            if time.monotonic() + delay > deadline:
                raise QueueUnavailable("no worker has set this server up yet: start one (`feedback worker`)")
            yield Sleep(delay)
            delay = min(2 * delay, 0.5)

    def _outcome(self, command_id: str, fields: dict[bytes, bytes], deadline: float) -> Flow[Result | None]:
        """A result stream's entry as a result; None when the command was requeued since it failed."""
        if fields.get(b"type") == b"1":
            try:
                result = wire.decode_result(fields[b"return_value"])
                # A stock RQ worker writes the stream itself; our job function then left the revision in the hash.
                revision = fields.get(b"revision") or (
                    yield from self._caller.call(("HGET", keys.job(command_id), "revision"), deadline)
                )
                return at_revision(result, int(revision) if revision is not None else None)
            except (ValueError, KeyError) as error:
                raise CommandFailed(f"the answer to {command_id} is not one of the contract's: {error}") from None
        status, failure = yield from self._caller.call(("HMGET", keys.job(command_id), "status", "failure"), deadline)
        if status in (b"queued", b"started", b"finished"):
            return None  # it was tried again since that entry, and may have succeeded while we asked
        # The job may be gone by now (a failover, say). The entry says it too, unless a stock RQ worker wrote that.
        failure = fields.get(b"failure", failure)
        if failure is None:
            raise CommandFailed(f"command {command_id} failed; see the job in RQ's failed registry")
        try:
            raise error_of(decode_failure(failure))
        except msgspec.MsgspecError as error:
            raise CommandFailed(f"command {command_id} failed in a way that is not readable: {error}") from None


def _goes_out(command: Command) -> bool:
    """Whether nothing at the boundary keeps the command from being sent."""
    return not isinstance(command, PutCommand) or command.note is None or not is_blank(command.note)


def _left_ms(deadline: float) -> int:
    """Milliseconds that are left, and that a connection is silent without being given up."""
    return max(1, int(1000 * min(BLOCK_S, deadline - time.monotonic())))


def _half(deadline: float) -> float:
    """Half of the seconds that are left."""
    return max(0.0, (deadline - time.monotonic()) / 2)


def _is_revision(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _refusal(command_id: str, outcome: bytes) -> FeedbackError | None:
    if outcome in (b"reused", "reused"):
        return CommandIdReused(f"command id {command_id} was used with another payload; use a new id")
    if outcome in (b"full", "full"):
        return QueueFull("the Session's queue is full; nothing was enqueued, try again later")
    return None


def _stream_entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """One stream's entries from XREAD's reply, which RESP2 gives as pairs and RESP3 as a map."""
    if not reply:
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return [(entry_id, dict(zip(fields[::2], fields[1::2], strict=True))) for entry_id, fields in entries]
