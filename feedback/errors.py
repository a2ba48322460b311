"""Infrastructure failures: one tree, one root (CONTRACT, "What this system adds").

Business outcomes (a conflict, an unknown message) are never exceptions: they are
values, see `feedback.results`. What is raised here says that an answer could not
be had, and its `disposition` says what may be done about it.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar


class Disposition(StrEnum):
    """What the worker does with a command that met a failure."""

    RETRYABLE = "retryable"
    """Tried again with backoff; the Session's later commands wait behind it."""
    FINAL = "final"
    """To the failed registry, from where an operator can retry or drop it."""
    INTERNAL = "internal"
    """Nobody is told: the partition's new owner redelivers."""


class FeedbackError(Exception):
    """Root of everything this package raises on purpose.

    Members are annotated in the class: these, of these types (`str`, `float` or `object`), are what a failure may bring
    along over the wire (`feedback.failures`).
    """

    disposition: ClassVar[Disposition] = Disposition.FINAL

    @property
    def code(self) -> str:
        """The failure's name in the contract; stands on the wire."""
        return type(self).__name__


class InvalidRequest(FeedbackError):
    """The request is malformed: an unknown member, a wrong type, a string that is not well-formed Unicode.

    `path` points at the member (`$.note`), `reason` says what is wrong with it.
    """

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CommandIdReused(FeedbackError):
    """The command id was used before with another payload. The first effect stands; use a new id."""


class CommandExpired(FeedbackError):
    """The command's deadline passed before it could be applied. It never will be: try again with a new id."""


class CommandUnknown(FeedbackError):
    """No command of that id is waiting, and no record of one is kept."""


class CommandFailed(FeedbackError):
    """The command was refused or broke in a way that has no name in the contract (a foreign or malformed job).

    The message is the worker's; the job lies in RQ's failed registry.
    """


class ShuttingDown(FeedbackError):
    """This process is stopping and takes no more work."""


class ResultTimeout(FeedbackError):
    """No answer within the timeout. The command may still be applied.

    Ask again with `result_of(command_id)`, or submit the same command with the same id.
    """

    disposition = Disposition.RETRYABLE
    command_id: str
    seconds: float

    def __init__(self, command_id: str, seconds: float) -> None:
        super().__init__(f"no answer to command {command_id} within {round(seconds, 1):g} s; ask again by its id")
        self.command_id = command_id
        self.seconds = seconds


class QueueUnavailable(FeedbackError):
    """The Redis server cannot be reached, refuses the command, or no worker ever set its topology up.

    `command_ids` names the commands that were to be enqueued, in order, those that got an id by the client as well.
    Some of them may be: submitted again by these ids, each takes effect once.
    """

    disposition = Disposition.RETRYABLE

    def note_commands(self, command_ids: Iterable[str]) -> None:
        """Say which commands were to be enqueued."""
        self._command_ids = tuple(command_ids)

    @property
    def command_ids(self) -> tuple[str, ...]:
        """Empty where none can have been."""
        return getattr(self, "_command_ids", ())


class QueueFull(QueueUnavailable):
    """The partition's queue is as long as `maxQueued` allows. Nothing was enqueued; try again later."""


class StoreUnavailable(FeedbackError):
    """The sidecar store cannot be opened, read or written right now."""

    disposition = Disposition.RETRYABLE


class StoreForeign(FeedbackError):
    """The sidecar file is not ours, or a newer program wrote it. Nothing was changed in it."""


class MediumInvalid(FeedbackError):
    """A medium of the original that is to be imported is not what its format says, as a whole. Nothing was imported.

    `path` says where; `kind` is the original's own word, `malformed-medium` or `version-mismatch`.
    """

    path: str
    kind: str
    reason: str

    def __init__(self, path: str, kind: str, reason: str) -> None:
        super().__init__(f"{path}: {kind}: {reason}")
        self.path = path
        self.kind = kind
        self.reason = reason


class MediumUnavailable(FeedbackError):
    """A medium to be imported or exported cannot be read or written (I/O)."""

    disposition = Disposition.RETRYABLE


class StoreMoved(StoreForeign):
    """The sidecar store was moved elsewhere, or is the unfinished copy of another: nothing may be read or written here.

    The message names the other store.
    """


class MigrationFailed(FeedbackError):
    """A store that was copied is not what its source is. Neither serves before the transfer is given up."""


class Fenced(FeedbackError):
    """Another owner holds a newer epoch of the partition: nothing was committed."""

    disposition = Disposition.INTERNAL


class SettingsInvalid(FeedbackError):
    """A setting is missing, malformed, or disagrees with what the deployment already uses."""


class LogFailure(FeedbackError):
    """A stored Session log could not answer; `session_id` and `path` say which."""

    session_id: str
    path: str
    reason: str

    def __init__(self, session_id: str, path: str, reason: str) -> None:
        super().__init__(f"Session {session_id!r}: {reason} ({path})")
        self.session_id = session_id
        self.path = path
        self.reason = reason


class LogCorrupt(LogFailure):
    """The log is damaged in a way that a torn tail does not explain."""


class LogFormatUnsupported(LogFailure):
    """The log's format version is newer than this program, or not one that was ever released."""

    version: object

    def __init__(self, session_id: str, path: str, version: object) -> None:
        super().__init__(session_id, path, f"log format version {version} is not supported")
        self.version = version


class LogAmbiguous(LogFailure):
    """One Session id in two places of the root."""


class RowInvalid(LogFailure):
    """A row is past the size that this reader takes, or its shape is not the format's."""


class LogUnreadable(LogFailure):
    """The log could not be read or fsynced (I/O)."""

    disposition = Disposition.RETRYABLE


class LogOwned(LogFailure):
    """Another writer holds the Session's write lock: nothing can be appended here."""

    disposition = Disposition.RETRYABLE


class FlushUnanswered(FeedbackError):
    """The Session's live owner did not answer a flush request in time."""

    disposition = Disposition.RETRYABLE


class FlushFailed(FeedbackError):
    """The Session's live owner could not flush its log."""

    disposition = Disposition.RETRYABLE


class AgentUnanswered(FeedbackError):
    """The agent of the host where the Session's log lies did not answer in time, or there is none; `host` names it."""

    disposition = Disposition.RETRYABLE
    host: str
    reason: str

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"the agent of host {host!r}: {reason}")
        self.host = host
        self.reason = reason


class HostUnknown(FeedbackError):
    """Nobody said on which host the Session's log lies, and whoever should look sees no logs itself."""


class ProcessEnded(FeedbackError):
    """A server, worker or projector that should be serving has ended; the message ends with what it logged."""
