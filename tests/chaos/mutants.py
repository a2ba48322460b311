"""Deliberately broken workers, which the checker must catch (`tests.chaos.worker`)."""

import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from feedback.partitions import PartitionId
from persistence.sidecar.sqlite import SqliteStore
from persistence.sidecar.sqlite_transaction import SqliteTransaction
from persistence.sidecar.store import StoreTransaction
from worker.engine import Engine
from worker.exchange import Exchange


class Mutant(StrEnum):
    """What is broken."""

    FENCE_OFF = "fence-off"
    """Commits whatever the stored epoch is, and renumbers its outcomes so that they fit."""
    ACKNOWLEDGE_FIRST = "acknowledge-first"
    """Now and then answers before it commits, and dies in between."""
    FORGETFUL = "forgetful"
    """Has lost the records of the commands that it applied."""


def _fence_off() -> None:
    fenced = SqliteTransaction.__init__
    commit = Engine._commit

    def unfenced(self: SqliteTransaction, connection: sqlite3.Connection, epochs: Mapping[PartitionId, int]) -> None:
        current = {
            partition: connection.execute(
                "SELECT epoch FROM fence WHERE generation = ? AND partition = ?",
                (partition.generation, partition.number),
            ).fetchone()[0]
            for partition in epochs
        }
        fenced(self, connection, current)

    def renumbered(self: Engine, claims: Any, owned: Any, needs: Any) -> Any:
        assert isinstance(self._store, SqliteStore)
        heads = self._store.heads(list(owned))
        for partition, ownership in owned.items():
            ownership.sequence = heads[partition]
        return commit(self, claims, owned, needs)

    SqliteTransaction.__init__ = unfenced  # type: ignore[method-assign]  # that is the point
    Engine._commit = renumbered  # type: ignore[method-assign]  # that is the point


def _acknowledge_first() -> None:
    honest, acknowledge = SqliteStore.transaction, Exchange.acknowledge
    doomed: list[bool] = []

    class _Undone(Exception):
        pass

    @contextlib.contextmanager
    def transaction(self: SqliteStore, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        with contextlib.suppress(_Undone), honest(self, epochs) as inner:
            yield inner
            if random.random() < 0.02:
                doomed.append(True)
                raise _Undone

    def answer(self: Exchange, endings: Any) -> None:
        acknowledge(self, endings)
        if doomed:
            while self.is_under_way:
                self.receive()
            os.kill(os.getpid(), signal.SIGKILL)

    SqliteStore.transaction = transaction  # type: ignore[method-assign]  # that is the point
    Exchange.acknowledge = answer  # type: ignore[method-assign]  # that is the point


def _forgetful() -> None:
    load = SqliteTransaction.load

    def forgetting(self: SqliteTransaction, command_ids: Any, targets: Any) -> Any:
        snapshot = load(self, command_ids, targets)
        for command_id in snapshot.records:
            # The column is unique: make room for the second outcome.
            self._connection.execute(
                "UPDATE command SET id = randomblob(16) WHERE lower(hex(id)) = ?", (command_id.replace("-", ""),)
            )
        return type(snapshot)({}, snapshot.sessions, snapshot.items)

    SqliteTransaction.load = forgetting  # type: ignore[method-assign]  # that is the point


_BREAK = {
    Mutant.FENCE_OFF: _fence_off,
    Mutant.ACKNOWLEDGE_FIRST: _acknowledge_first,
    Mutant.FORGETFUL: _forgetful,
}


def break_worker(mutant: Mutant) -> None:
    """Break the worker that this process is going to be."""
    _BREAK[mutant]()
