"""What lies in an RQ job's hash and result stream, and how it is read without trusting it.

Job data is msgpack of `[function, null, [command], {}]`, RQ's own shape, so that RQ's tools and
stock workers understand it (docs/wire-format.md). It is never unpickled, nothing in it is imported,
and it is inflated under a cap: RQ compresses what it writes back on requeueing.
"""

import zlib
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from feedback.commands import MAX_COMMAND_BYTES, Command, PutCommand, check_command
from feedback.decoding import decoded
from feedback.errors import InvalidRequest
from feedback.requests import invalid
from feedback.results import Result, result_from_builtins

FUNCTION = "worker.jobs.apply_command"

_Call = tuple[Literal["worker.jobs.apply_command"], None, tuple[Command], Annotated[dict[str, int], Meta(max_length=0)]]

_call = msgspec.msgpack.Decoder(_Call)
_anything: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder()
_ZLIB_HEADER = 0x78


class Serializer:
    """RQ's serializer for our queues.

    `Queue(..., serializer=Serializer)` in Python, `--serializer feedback.wire.Serializer` for RQ's commands.
    """

    @staticmethod
    def dumps(value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    @staticmethod
    def loads(data: bytes) -> Any:
        """Raises `ValueError` for a job of another function: a stock worker would import and call it."""
        value = msgspec.msgpack.decode(data)
        # Job data is the one array among what RQ hands over; results and `meta` are maps.
        if isinstance(value, list) and value[:1] != [FUNCTION]:
            raise ValueError("a job of another function")
        return value


def encode_job(command: Command) -> bytes:
    """The job's `data` field.

    Raises:
        InvalidRequest: the command is larger than `MAX_COMMAND_BYTES`.
    """
    data = msgspec.msgpack.encode((FUNCTION, None, (command,), {}))
    if len(data) > MAX_COMMAND_BYTES:
        raise InvalidRequest("$", f"a command of {len(data)} bytes; at most {MAX_COMMAND_BYTES} are taken")
    return data


def decode_job(data: bytes) -> Command:
    """The command in a job's `data` field.

    Raises:
        InvalidRequest: it is somebody else's job, malformed, too large, or of a schema that we do not know.
    """
    try:
        _function, _instance, (command,), _kwargs = decoded(_call, _inflated(data))
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest("$", f"not a feedback command: {error}") from None
    return check_command(command)


def rq_now() -> str:
    """The time now, as RQ writes times."""
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def describe(command: Command) -> str:
    """What RQ's tools show for a job. No ids and no notes: it ends up in logs."""
    return "feedback put" if isinstance(command, PutCommand) else "feedback delete"


def encode_result(result: Result) -> bytes:
    """A result stream's `return_value`, as RQ spells it."""
    return b64encode(msgspec.msgpack.encode(result))


def decode_result(data: bytes) -> Result:
    """Raises `ValueError` (msgspec's errors are such) for anything that is not a result."""
    if len(data) > 4 * MAX_COMMAND_BYTES:
        raise ValueError("a result larger than any command")
    return result_from_builtins(decoded(_anything, b64decode(data, validate=True)))


def encode_traceback(text: str) -> bytes:
    """A failed result's `exc_string`, as RQ spells it."""
    return b64encode(zlib.compress(text.encode(errors="backslashreplace")))


def _inflated(data: bytes) -> bytes:
    # Our msgpack begins with a 4-element array (0x94): never a zlib header.
    if data[:1] == bytes([_ZLIB_HEADER]):
        inflater = zlib.decompressobj()
        try:
            inflated = inflater.decompress(data, MAX_COMMAND_BYTES + 1)
        except zlib.error as error:
            raise InvalidRequest("$", f"not a feedback command: {error}") from None
        # Only the checksum at its end tells that it is whole.
        if len(inflated) <= MAX_COMMAND_BYTES and (not inflater.eof or inflater.unused_data):
            raise InvalidRequest("$", "not a feedback command: not one whole zlib stream")
        data = inflated
    if len(data) > MAX_COMMAND_BYTES:
        raise InvalidRequest("$", f"larger than {MAX_COMMAND_BYTES} bytes")
    return data
