"""Files of records that a killed export goes on with, to the same bytes.

Beside the output lie, until it is complete: what was written so far (`.partial`), and a checkpoint that says up to
which Session that counts. What was written past the checkpoint is written again.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from app.training.records import AnswerRecord, PairRecord
from feedback.errors import LogUnreadable, SettingsInvalid
from persistence.atomic_file import fsync_directory, replace_file

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
    named). Of these, `unreadable` have a log that the system did not give (LogUnreadable): another export may have
    them. `unknown` counts ratings of messages that the log does not hold.
    """

    records: int = 0
    sessions: int = 0
    stale: int = 0
    unknown: int = 0
    skipped: int = 0
    unreadable: int = 0
    named: list[Skipped] = []

    def skip(self, skipped: Skipped) -> None:
        """Counts one."""
        self.skipped += 1
        self.unreadable += skipped.code == LogUnreadable.__name__
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


class Unfinished:
    """What lies beside an output until it is complete, which only one export has at a time: data and checkpoint.

    The checkpoint counts for as long as there is the file at `partial` (or in it) that will take the output's name.
    So the rename that publishes the output also takes the checkpoint back: there is nothing to fall in between.
    """

    def __init__(self, output: Path) -> None:
        self.partial = output.with_name(f"{output.name}.partial")
        self._path = output.with_name(f"{output.name}.checkpoint")

    def load(self, plan: str, *, restart: bool, counts: Callable[[Checkpoint], bool]) -> Checkpoint:
        """Where to go on, or the beginning. `counts` says whether what was written up to a checkpoint still lies there.

        Raises SettingsInvalid when an export with other arguments was interrupted here, OSError.
        """
        found = None if restart else self._read()
        if found is not None and found.plan != plan and self.partial.exists():
            raise SettingsInvalid(
                f"--output: {self._path} is of an export with other arguments; give those again, or --restart"
            )
        if found is not None and found.plan == plan and counts(found):
            return found
        self.forget()
        self._discard_partial()
        return Checkpoint(plan=plan)

    def save(self, checkpoint: Checkpoint) -> None:
        """Raises OSError."""
        replace_file(self._path, msgspec.json.encode(checkpoint) + b"\n")

    def forget(self) -> None:
        """The checkpoint goes, for good: what is written from now on is not what it speaks of. Raises OSError."""
        for temporary in self._path.parent.glob(f"{escape(self._path.name)}.*.tmp"):
            temporary.unlink(missing_ok=True)  # of an export that was killed while it saved
        if self._path.exists():
            self._path.unlink()
            fsync_directory(self._path.parent)

    def _read(self) -> Checkpoint | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise SettingsInvalid(f"--output: {self._path} is no checkpoint of an export: {error}") from None

    def _discard_partial(self) -> None:
        """A file or a directory, as the format is that left it."""
        if self.partial.is_dir():
            shutil.rmtree(self.partial)
        else:
            self.partial.unlink(missing_ok=True)


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
