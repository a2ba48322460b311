"""Importing a medium of the original while the system runs, or does not: chunk by chunk, each under its own fences."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from feedback.crashpoints import CrashPoint, reach
from feedback.partitions import PartitionId
from persistence.interchange.merge import Numbering, Part, Plan, doubtful, import_id, outdated, parts_of, plan, written
from persistence.interchange.past import Past
from persistence.interchange.rows import MOST_LISTED, TABLE, Found, Ignored, Refusal, Row, quoted, storable
from persistence.sidecar.store import PutItem, SessionFeedback, SidecarStore
from worker.core.batching import CLOCK_SLACK_MS
from worker.turns import Turns, until_unfenced

_MOST_ITEMS = 2000
_MOST_BYTES = 4 * 2**20
_MOST_PARTITIONS = 64
"""Of one transaction: each takes a few round trips, while its commands wait."""
_PATIENCE_S = 30.0
_SHORTEST_PAUSE_S = 0.1


class ImportReport(Struct, frozen=True, kw_only=True):
    """`sessions` were read, in order or in part. Of their items so many were added, updated (the store's was older),
    unchanged, or kept (the store's is newer, or it was deleted there, or may have been). `refused` records or items are
    not in order, `ignored` entries are what the original passes over in silence; of both the first `MOST_LISTED` are
    listed."""

    sessions: int
    added: int
    updated: int
    unchanged: int
    kept: int
    refused: int
    ignored: int
    refusals: tuple[Refusal, ...]
    ignorances: tuple[Ignored, ...]


class Importer:
    """Takes what a medium holds into the store. What one run has done, the next finds unchanged."""

    def __init__(
        self, store: SidecarStore, turns: Turns, *, clock_ms: Callable[[], int], retention_ms: int, actor: str | None
    ) -> None:
        """`actor` stands in the events. `retention_ms`: how long a record is kept, at least (`command_retention`)."""
        self._store = store
        self._turns = turns
        self._clock_ms = clock_ms
        self._retention_ms = retention_ms
        self._actor = actor
        self._tally = _Tally()
        self._past = Past("")
        self._next_turn = 0.0

    def run(self, found: Iterable[Found], *, check: bool) -> ImportReport:
        """Import what was found, in its order; with `check`, only say what would be.

        Raises:
            QueueUnavailable: no turn could be had. As after any failure: what was imported stays, run it again.
            RedisError, SettingsInvalid, StoreUnavailable
        """
        for chunk in self._chunks(self._parts(found)):
            self._import(chunk, check=check)
        return self._tally.report()

    def _parts(self, found: Iterable[Found]) -> Iterator[tuple[int, Part]]:
        """Each part, with the number of its row."""
        for number, one in enumerate(found):
            if not isinstance(one, Row):
                self._tally.note(one)
                continue
            row, refusals = storable(one, f"{TABLE}[{quoted(one.session_id)}]")
            for refusal in refusals:
                self._tally.note(refusal)
            if row is not None:
                self._tally.sessions += 1
                yield from ((number, part) for part in parts_of(row, _MOST_ITEMS // 2, _MOST_BYTES // 2))

    def _chunks(self, parts: Iterable[tuple[int, Part]]) -> Iterator[list[Part]]:
        """The parts in order, as many at a time as make one transaction."""
        partition_of = self._turns.topology().partition_of
        chunk: list[Part] = []
        partitions: set[PartitionId] = set()
        rows: dict[str, int] = {}
        items = size = 0
        for number, part in parts:
            partitions.add(partition_of(part.session_id))
            items, size = items + max(1, len(part.items)), size + part.size
            full = items > _MOST_ITEMS or size > _MOST_BYTES or len(partitions) > _MOST_PARTITIONS
            # A Session that was written to while its database is read comes twice: each is decided after the other.
            if chunk and (full or rows.get(part.session_id, number) != number):
                yield chunk
                chunk, partitions, rows = [], {partition_of(part.session_id)}, {}
                items, size = max(1, len(part.items)), part.size
            chunk.append(part)
            rows[part.session_id] = number
        if chunk:
            yield chunk

    def _import(self, chunk: Sequence[Part], *, check: bool) -> None:
        plans = [one for one, _ in self._plans(chunk)]
        if check:
            self._tally.add(plans)
            return
        # What needs no writing needs no turn: a second run disturbs nobody.
        self._tally.add(one for one in plans if one.is_idle)
        if busy := [one.part for one in plans if not one.is_idle]:
            self._write(busy)

    def _write(self, parts: Sequence[Part]) -> None:
        time.sleep(max(0.0, self._next_turn - time.monotonic()))
        plans = until_unfenced(lambda: self._turn(parts), time.monotonic() + _PATIENCE_S)
        self._tally.add(plans)

    def _turn(self, parts: Sequence[Part]) -> list[Plan]:
        began = time.monotonic()
        plans, workers = self._commit(parts)
        now = time.monotonic()
        # Workers have their partitions for as long as this had them.
        self._next_turn = now + max(_SHORTEST_PAUSE_S, now - began) if workers else now
        return plans

    def _commit(self, parts: Sequence[Part]) -> tuple[list[Plan], bool]:
        """Decide again with nobody able to commit meanwhile, and write; whether workers wait for their partitions."""
        with self._turns.take({part.session_id for part in parts}) as turn:
            planned = list(self._plans(parts))
            now_ms = self._clock_ms()
            changes, records = written(
                (one for one, _ in planned),
                Numbering(
                    partition_of=turn.topology.partition_of,
                    epochs={partition: fence.epoch for partition, fence in turn.fences.items()},
                    sequences={partition: fence.sequence for partition, fence in turn.fences.items()},
                    revisions={one.part.session_id: revision for one, revision in planned},
                    now_ms=now_ms,
                    expires_at=now_ms + self._retention_ms,
                    actor=self._actor,
                ),
            )
            with self._store.transaction(
                {partition: fence.epoch for partition, fence in turn.fences.items()}
            ) as writing:
                writing.apply(changes, records, {})
            reach(CrashPoint.AFTER_COMMIT)
            revisions = {change.session_id: change.revision for change in changes if isinstance(change, PutItem)}
            self._turns.publish(records, revisions)
        return [one for one, _ in planned], turn.workers

    def _plans(self, parts: Sequence[Part]) -> Iterator[tuple[Plan, int]]:
        """A plan for each part, with its Session's revision now. One Session at a time is held in memory."""
        known = self._store.stored_sessions(tuple({part.session_id for part in parts}))
        stored: SessionFeedback | None = None
        for part in parts:
            if part.session_id not in known:
                stored = None
            elif stored is None or stored.session_id != part.session_id:
                stored = self._store.feedback(part.session_id)
            yield plan(part, stored, self._gone(part, stored)), 0 if stored is None else stored.revision

    def _gone(self, part: Part, stored: SessionFeedback | None) -> set[str]:
        """The message ids of what is not here any more, though it was: changed or deleted since."""
        unsure = doubtful(part, stored)
        if stored is None or not unsure:
            return set()
        if self._past.session_id != part.session_id:
            self._past = Past(part.session_id)
        self._past.read_on(self._store)
        # Clocks may differ: of whoever updated an item, whoever deleted it, and whoever forgets records.
        known_since = self._clock_ms() - self._retention_ms + CLOCK_SLACK_MS
        gone = outdated(part, stored, self._past, known_since)
        imports = {import_id(part.session_id, part.identity, item): item.message_id for item in unsure}
        return gone | {imports[command_id] for command_id in self._store.recorded(tuple(imports))}


class _Tally:
    """What became of everything, so far."""

    def __init__(self) -> None:
        self.sessions = 0
        self._added = self._updated = self._unchanged = self._kept = self._refused = self._ignored = 0
        self._refusals: list[Refusal] = []
        self._ignorances: list[Ignored] = []

    def note(self, one: Refusal | Ignored) -> None:
        """Count what is not taken; the first ones are kept to be listed."""
        if isinstance(one, Refusal):
            self._refused += 1
            if self._refused <= MOST_LISTED:
                self._refusals.append(one)
        else:
            self._ignored += 1
            if self._ignored <= MOST_LISTED:
                self._ignorances.append(one)

    def add(self, plans: Iterable[Plan]) -> None:
        """Count items by their fate."""
        for one in plans:
            self._added += one.added
            self._updated += one.updated
            self._unchanged += one.unchanged
            self._kept += one.kept

    def report(self) -> ImportReport:
        return ImportReport(
            sessions=self.sessions,
            added=self._added,
            updated=self._updated,
            unchanged=self._unchanged,
            kept=self._kept,
            refused=self._refused,
            ignored=self._ignored,
            refusals=tuple(self._refusals),
            ignorances=tuple(self._ignorances),
        )
