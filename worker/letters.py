"""Dead letters as values: what stands in RQ's failed registries, read as the worker reads jobs, without trusting it.

Pure: bytes in, values out. `worker.dead_letters` fetches and moves them.
"""

import re
import zlib
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
from msgspec import Struct

from feedback import wire
from feedback.commands import Command
from feedback.errors import InvalidRequest
from feedback.failures import Failure, decode_failure
from feedback.partitions import PartitionId

MAX_TRACEBACK_CHARS = 2**18

_FIRST_FAILED = re.compile(rb"(\d{1,18})-(\d{1,9})")
_RQ_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

Row: TypeAlias = Sequence[bytes | int | None]
"""One job, as `dlq_read.lua` replies."""


class Place(Struct, frozen=True, array_like=True):
    """An entry's place among all dead letters: a listing continues behind it, also when it is gone."""

    partition: PartitionId
    score: str
    job_id: bytes

    @property
    def cursor(self) -> str:
        """As text that a user can hand back."""
        fields = (self.partition.generation, self.partition.number, self.score, self.job_id)
        return urlsafe_b64encode(msgspec.msgpack.encode(fields)).rstrip(b"=").decode()

    @classmethod
    def of_cursor(cls, cursor: str) -> "Place":
        """Raises `InvalidRequest` for what is no cursor."""
        try:
            data = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            generation, number, score, job_id = msgspec.msgpack.decode(data, type=tuple[int, int, str, bytes])
            float(score)
        except ValueError:
            raise InvalidRequest("--after", f"not a cursor: {cursor!r:.80}") from None
        return cls(PartitionId(generation, number), score, job_id)


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One job in a failed registry. Times are milliseconds since the Unix epoch, None when the job does not say.

    `problem` says why it is no command of ours; then `command` is None, and it can only be dropped.
    """

    place: Place
    command: Command | None
    problem: str | None
    failure: Failure
    failures: int
    """How often it failed, up to ten."""
    enqueued_at: int | None
    failed_at: int | None
    size: int
    """Bytes of job data."""
    order: tuple[int, int]
    """When it failed first, in the order in which its Session's commands were enqueued."""
    token: str
    """Another one once it was retried."""

    @property
    def job_id(self) -> str:
        """Its name in the registry: the command id, for a command of ours."""
        return self.place.job_id.decode(errors="backslashreplace")

    def is_expired(self, now_ms: int) -> bool:
        """Whether its deadline has passed: retried, it would only fail again."""
        return self.command is not None and self.command.expires_at < now_ms


class Filter(Struct, frozen=True):
    """Which dead letters are meant; None: whatever it is."""

    session_id: str | None = None
    code: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Whether all that is asked for holds."""
        in_session = letter.command is not None and letter.command.session_id == self.session_id
        return (self.session_id is None or in_session) and self.code in {None, letter.failure.code}


class Chosen(Struct, frozen=True, gc=False):
    """What moving or dropping one letter takes: small, since all that are meant are held at once."""

    place: Place
    session_id: str
    token: str
    order: tuple[int, int] = (0, 0)
    """As the letter's."""


class Choice(Struct, frozen=True):
    """Letters to be put back, in order; how many are left out because they expired or are no commands of ours."""

    chosen: Sequence[Chosen]
    expired: int
    foreign: int


def choose_for_retry(letters: Iterable[DeadLetter], now_ms: int) -> Choice:
    """The commands among these, in the order in which they were enqueued (by Session, wherever they are listed)."""
    chosen: list[Chosen] = []
    expired = foreign = 0
    for letter in letters:
        if letter.command is None:
            foreign += 1
        elif letter.is_expired(now_ms):
            expired += 1
        else:
            chosen.append(Chosen(letter.place, letter.command.session_id, letter.token, letter.order))
    chosen.sort(key=lambda one: one.order)
    return Choice(chosen, expired, foreign)


def choose_for_drop(letters: Iterable[DeadLetter]) -> list[Chosen]:
    """These, whatever they are."""
    return [Chosen(letter.place, "", letter.token) for letter in letters]


def letter_of(place: Place, row: Row) -> DeadLetter | None:
    """A registry's entry with its job; None when the job is not failed (any more), whatever the registry says."""
    if len(row) == 1:
        problem = "the job is gone, only its entry is left" if row[0] == b"gone" else "the job's key is no hash"
        return _foreign(place, problem)
    status, data, failure, created_at, ended_at, first_failed, token, failures = row
    if status != b"failed":
        return None
    command, problem_ = _command(place.job_id, data)
    enqueued_at, failed_at = _microseconds(created_at), _microseconds(ended_at)
    return DeadLetter(
        place=place,
        command=command,
        problem=problem_,
        failure=_failure(failure),
        failures=failures if isinstance(failures, int) else 0,
        enqueued_at=_milliseconds(enqueued_at),
        failed_at=_milliseconds(failed_at),
        size=data if isinstance(data, int) else len(data or b""),
        order=_order(first_failed) or (failed_at or enqueued_at or 0, 0),
        token=_text(token),
    )


def readable_traceback(text: bytes | int | None) -> str | None:
    """A traceback as RQ spells it (base64 of zlib), inflated up to `MAX_TRACEBACK_CHARS`; None when there is none."""
    if text is None:
        return None
    if isinstance(text, int):
        return f"[a traceback of {text} bytes; not read]"
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(b64decode(text, validate=True), MAX_TRACEBACK_CHARS)
    except (ValueError, zlib.error) as error:
        return f"[a traceback that is not readable: {error}]"
    whole = inflater.eof
    return inflated.decode(errors="backslashreplace") + ("" if whole else "\n[cut off here]")


def _foreign(place: Place, problem: str) -> DeadLetter:
    return DeadLetter(
        place=place,
        command=None,
        problem=problem,
        failure=_failure(None),
        failures=0,
        enqueued_at=None,
        failed_at=None,
        size=0,
        order=(0, 0),
        token="",
    )


def _command(job_id: bytes, data: bytes | int | None) -> tuple[Command | None, str | None]:
    if isinstance(data, int):
        return None, f"{data} bytes of job data; not read"
    try:
        command = wire.decode_job(data or b"")
    except InvalidRequest as error:
        return None, str(error)
    if command.command_id.encode() != job_id:
        return None, "$.commandId: is not the job's id"
    return command, None


def _failure(data: bytes | int | None) -> Failure:
    """What our workers wrote; RQ itself leaves a traceback at most."""
    if isinstance(data, bytes):
        try:
            return decode_failure(data)
        except msgspec.MsgspecError:
            pass
    return Failure("CommandFailed", "the job does not say why; its traceback may")


def _order(text: bytes | int | None) -> tuple[int, int] | None:
    match = _FIRST_FAILED.fullmatch(text) if isinstance(text, bytes) else None
    return (int(match[1]), int(match[2])) if match else None


def _microseconds(text: bytes | int | None) -> int | None:
    """A time as RQ writes it, since the Unix epoch."""
    try:
        moment = datetime.strptime(_text(text), _RQ_TIME).replace(tzinfo=UTC)
        return int(moment.timestamp()) * 1_000_000 + moment.microsecond
    except ValueError:
        return None


def _milliseconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // 1000


def _text(value: bytes | int | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
