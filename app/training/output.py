"""Files of records that a killed export goes on with, to the same bytes.

Beside the output lie, until it is complete: what was written so far (`.partial`), and a checkpoint that says up to
which Session that counts. What was written past the checkpoint is written again.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from app.training.records import AnswerRecord, PairRecord
from feedback.errors import SettingsInvalid
from persistence.atomic_file import replace_file

Record: TypeAlias = AnswerRecord | PairRecord

_MOST_NAMED = 100


class Skipped(Struct, frozen=True, rename="camel"):
    """A Session whose ratings could not be exported, and why: the failure's name in the contract, and its sentence."""

    session_id: str
    code: str
    message: str


class Tally(Struct, kw_only=True, rename="camel"):
    """What an export has done so far, over all its runs.

    `sessions` were looked at; of those with ratings to export, `stale` have them only for another life of the
    Session, which counts as absent, and `skipped` a log that is missing or cannot be read (the first hundred are
    named). `unknown` counts ratings of messages that the log does not hold.
    """

    records: int = 0
    sessions: int = 0
    stale: int = 0
    unknown: int = 0
    skipped: int = 0
    named: list[Skipped] = []

    def skip(self, skipped: Skipped) -> None:
        """Counts one."""
        self.skipped += 1
        if len(self.named) < _MOST_NAMED:
            self.named.append(skipped)


class Checkpoint(Struct, kw_only=True, rename="camel"):
    """Up to where an output counts. `plan` stands for the arguments; `written` is bytes, or part files."""

    plan: str
    last_session: str | None = None
    written: int = 0
    tally: Tally = msgspec.field(default_factory=Tally)


class Output(Protocol):
    """Takes the records of one Session after the other, and goes on where an interrupted one of this plan stopped."""

    @property
    def checkpoint(self) -> Checkpoint:
        """Where this export began, or went on; its tally is kept up to date by the caller."""
        ...

    def write(self, record: Record) -> None:
        """One more record of the current Session. Raises OSError."""
        ...

    def end_session(self, session_id: str) -> None:
        """The current Session is complete: a checkpoint may be made. Raises OSError."""
        ...

    def finish(self) -> None:
        """All are: put the output in its place. Raises OSError."""
        ...

    def close(self) -> None:
        """Give the files up; what is not finished can be gone on with."""
        ...


class CheckpointFile:
    """The checkpoint beside an output, which only one export has at a time."""

    def __init__(self, output: Path) -> None:
        self._path = output.with_name(f"{output.name}.checkpoint")

    def load(self, plan: str, *, restart: bool) -> Checkpoint:
        """Where to go on. Raises SettingsInvalid when an export with other arguments was interrupted here."""
        if restart:
            self._path.unlink(missing_ok=True)
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            return Checkpoint(plan=plan)
        except msgspec.MsgspecError as error:
            raise SettingsInvalid(f"--output: {self._path} is no checkpoint of an export: {error}") from None
        if found.plan != plan:
            raise SettingsInvalid(
                f"--output: {self._path} is of an export with other arguments; give those again, or --restart"
            )
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Raises OSError."""
        replace_file(self._path, msgspec.json.encode(checkpoint) + b"\n")

    def remove(self) -> None:
        """The export is complete, or what the checkpoint speaks of is gone: it must not be taken for a later one's."""
        self._path.unlink(missing_ok=True)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Nobody else exports to this output meanwhile. Raises SettingsInvalid when somebody does, OSError."""
    path = output.with_name(f"{output.name}.lock")
    descriptor = _lock(path, output)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, output: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise SettingsInvalid(f"--output: another process is exporting to {output}") from None
        os.close(descriptor)  # its holder took it away just now


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
