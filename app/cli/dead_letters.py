"""How `feedback dlq` shows dead letters: documents for programs, lines for people."""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType
from rich.text import Text

from app.cli.output import console, moment, printable, shortened
from feedback.commands import Command, PutCommand
from worker.letters import DeadLetter

_WIDTH = 100
_UNITS = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


class LetterFailure(Struct, frozen=True):
    """Why it failed last: the failure's name in the contract, and its sentence."""

    code: str
    message: str


class LetterLine(Struct, frozen=True, kw_only=True, rename="camel"):
    """One dead letter. Times in milliseconds since the Unix epoch, null when the job does not say.

    `problem` is there when it is no command of ours: then it cannot be retried, and its members are null.
    """

    command_id: str
    partition: str
    operation: str | None
    session_id: str | None
    message_id: str | None
    failure: LetterFailure
    failures: int
    enqueued_at: int | None
    failed_at: int | None
    expires_at: int | None
    problem: str | UnsetType = UNSET


class LetterDocument(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything about one: all members of the command (its note included), and the last traceback."""

    ok: bool = True
    letter: LetterLine
    data_bytes: int
    command: Command | None
    traceback: str | None


class LetterPage(Struct, frozen=True):
    """A page; `next` continues behind it and is absent on the last one."""

    letters: Sequence[LetterLine]
    next: str | UnsetType = UNSET


class RetryReport(Struct, frozen=True, kw_only=True):
    """How many were put back, and how many not: expired, no commands of ours, not failed (any more)."""

    ok: bool
    retried: int
    expired: int
    foreign: int
    absent: int

    def lines(self) -> list[str]:
        """For people; what is zero is left out."""
        reasons = (
            (self.expired, "left: their deadline has passed, they would only fail again (drop them)"),
            (self.foreign, "left: not commands of this system (see `feedback dlq show`, drop them)"),
            (self.absent, "not there: never failed, or somebody else has retried or dropped them"),
        )
        return [f"{self.retried} retried", *(f"{count} {reason}" for count, reason in reasons if count)]


class DropReport(Struct, frozen=True, kw_only=True):
    """How many were removed, and how many were not there any more."""

    ok: bool
    dropped: int
    absent: int

    def lines(self) -> list[str]:
        """For people; what is zero is left out."""
        gone = [f"{self.absent} not there: somebody else has retried or dropped them, or they never failed"]
        return [f"{self.dropped} dropped", *(gone if self.absent else ())]


def page_document(letters: Sequence[DeadLetter], cursor: str | None) -> LetterPage:
    """The document of `list`."""
    return LetterPage([_letter_line(letter) for letter in letters], UNSET if cursor is None else cursor)


def letter_document(letter: DeadLetter, traceback: str | None) -> LetterDocument:
    """The document of `show`."""
    return LetterDocument(
        letter=_letter_line(letter), data_bytes=letter.size, command=letter.command, traceback=traceback
    )


def print_page(letters: Sequence[DeadLetter], cursor: str | None) -> None:
    """A page for people."""
    out = console()
    for letter in letters:
        out.print(_heading(letter))
        out.print(f"    {shortened(letter.problem or letter.failure.message, _WIDTH)}")
    if not letters:
        out.print("nothing here")
    if cursor is not None:
        out.print(f"more: --after {cursor}", style="dim")


def letter_lines(letter: DeadLetter, traceback: str | None, now_ms: int) -> Iterator[Text]:
    """One dead letter for people, to the last line of its traceback."""
    failure, times = letter.failure, f" ({letter.failures} times)" if letter.failures > 1 else ""
    yield Text(printable(letter.job_id), "bold")
    yield _line("failure", f"{failure.code}{times}: {failure.message}")
    if letter.problem is not None:
        yield _line("problem", f"{letter.problem}; it can be dropped, not retried")
    yield _line("partition", str(letter.place.partition))
    for name, value in (("enqueued", letter.enqueued_at), ("failed", letter.failed_at)):
        if value is not None:
            yield _line(name, f"{moment(value)}, {_age(now_ms - value)} ago")
    if letter.command is not None:
        yield from _command_lines(letter.command, letter.is_expired(now_ms))
    if traceback is not None:
        yield Text("traceback")
        for line in traceback.splitlines():
            yield Text(f"  {printable(line)}", "dim")


def _command_lines(command: Command, is_expired: bool) -> Iterator[Text]:
    yield _line("deadline", moment(command.expires_at) + (", passed: it can be dropped, not retried" * is_expired))
    yield _line("operation", _operation(command))
    yield _line("Session", command.session_id)
    yield _line("message", command.message_id)
    if isinstance(command, PutCommand):
        yield _line("rating", command.rating)
        if command.note is not None:
            yield _line("note", command.note)
    yield _line("if version", "none" if command.if_version is None else command.if_version)
    if command.actor is not None:
        yield _line("actor", command.actor)
    if command.host is not None:
        yield _line("host", command.host)


def _letter_line(letter: DeadLetter) -> LetterLine:
    command = letter.command
    return LetterLine(
        command_id=letter.job_id,
        partition=str(letter.place.partition),
        operation=None if command is None else _operation(command),
        session_id=None if command is None else command.session_id,
        message_id=None if command is None else command.message_id,
        failure=LetterFailure(letter.failure.code, letter.failure.message),
        failures=letter.failures,
        enqueued_at=letter.enqueued_at,
        failed_at=letter.failed_at,
        expires_at=None if command is None else command.expires_at,
        problem=UNSET if letter.problem is None else letter.problem,
    )


def _operation(command: Command) -> str:
    return "put" if isinstance(command, PutCommand) else "delete"


def _heading(letter: DeadLetter) -> Text:
    command = letter.command
    about = "" if command is None else f"{_operation(command)} {command.session_id} {command.message_id}"
    when = "" if letter.failed_at is None else moment(letter.failed_at)
    return Text.assemble(
        (printable(letter.job_id), "bold"),
        (f"  {printable(letter.failure.code)}", "red"),
        f"  {shortened(about, _WIDTH)}",
        (f"  {when}".rstrip(), "dim"),
    )


def _line(name: str, value: str) -> Text:
    return Text(f"{name:<10} {printable(value)}")


def _age(milliseconds: int) -> str:
    seconds = max(0, milliseconds // 1000)
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return "a moment"
