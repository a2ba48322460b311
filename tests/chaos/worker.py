"""A worker of the campaign: the real one, which also notes in which epochs it committed.

`python -m tests.chaos.worker JOURNAL MUTANT ARGUMENTS...`: JOURNAL is a file that is appended to, MUTANT a deliberately
broken worker (`tests.chaos.mutants`) or `none`.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from app.cli import main
from feedback.partitions import PartitionId
from persistence.sidecar.postgres import PostgresStore
from persistence.sidecar.sqlite import SqliteStore
from persistence.sidecar.store import SidecarStore, StoreTransaction
from tests.chaos.mutants import Mutant, break_worker


def note_commits(journal: Path) -> None:
    """From now on each commit of this process leaves a line for each partition that it was fenced for."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for engine in (SqliteStore, PostgresStore):
        engine.transaction = _noting(engine.transaction, descriptor)  # type: ignore[method-assign]  # that is the point


def _noting(commit: Callable[..., AbstractContextManager[StoreTransaction]], descriptor: int) -> Any:
    @contextlib.contextmanager
    def transaction(self: SidecarStore, epochs: Mapping[PartitionId, int]) -> Iterator[StoreTransaction]:
        with commit(self, epochs) as inner:
            yield inner
        os.write(descriptor, "".join(f"{p.generation} {p.number} {e}\n" for p, e in epochs.items()).encode())

    return transaction


def commits(journals: Path) -> Iterator[tuple[PartitionId, int, str]]:
    """Partition, epoch and worker of each commit that was noted; a line that a kill cut off counts for nothing."""
    for journal in sorted(journals.iterdir()):
        for line in set(journal.read_text().split("\n")[:-1]):
            generation, number, epoch = map(int, line.split())
            yield PartitionId(generation, number), epoch, journal.name


if __name__ == "__main__":
    if sys.argv[2] != "none":
        break_worker(Mutant(sys.argv[2]))
    note_commits(Path(sys.argv[1]))
    sys.argv[1:3] = []
    sys.exit(main())
