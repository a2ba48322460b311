"""Commands ready to be enqueued: encoded before the first of them is sent, so that a malformed one stops them all."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from feedback import wire
from feedback.commands import Command, digest_of

MAX_CHUNK = 256
MAX_CHUNK_BYTES = 8 * 2**20


class Envelope(Struct, frozen=True):
    """A command as it goes into RQ's job hash."""

    command_id: str
    session_id: str
    data: bytes
    digest: bytes
    description: str


def envelope_of(command: Command) -> Envelope:
    """Encode a command.

    Raises:
        InvalidRequest: it is larger than `MAX_COMMAND_BYTES`.
    """
    return Envelope(
        command.command_id, command.session_id, wire.encode_job(command), digest_of(command), wire.describe(command)
    )


def chunks(envelopes: Sequence[tuple[int, Envelope]]) -> Iterator[Sequence[tuple[int, Envelope]]]:
    """Slices in order, each small enough to be sent and run at once."""
    start, size = 0, 0
    for index, (_, envelope) in enumerate(envelopes):
        if index > start and (index - start == MAX_CHUNK or size + len(envelope.data) > MAX_CHUNK_BYTES):
            yield envelopes[start:index]
            start, size = index, 0
        size += len(envelope.data)
    if envelopes:
        yield envelopes[start:]
