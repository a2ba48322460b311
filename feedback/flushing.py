"""What workers and the live owners of Sessions say to each other (CONTRACT, "Rules of `put`", 5).

A host registers each Session that it holds open at `keys.live(session_id)`, and itself at
`keys.owner(owner_id)`, which expires when its heartbeat stops. A worker that needs a Session's log on stable
storage pushes a `FlushRequest` on `keys.flushes(owner_id)`; the owner flushes, and pushes a `FlushReply`, behind the
mark that tells it from other rings, on the worker's wake list. Nothing in here is trusted: what an owner says it
flushed is read from the log itself before it counts.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from feedback.decoding import decoded
from feedback.model import SessionIdentity

REPLY_MARK = b"flush:"

FlushStatus = Literal["flushed", "failed", "detached"]


class LiveOwner(Struct, frozen=True, kw_only=True):
    """A live host that holds a Session open, and the identity of the header that it writes under."""

    owner_id: str
    session_id: str
    identity: SessionIdentity


class FlushRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Asks a Session's owner to put its log on stable storage; `deadline` in milliseconds since the Unix epoch.

    `worker_id` names the wake list that the reply goes to.
    """

    request_id: str
    worker_id: str
    session_id: str
    session: SessionIdentity
    deadline: int


class FlushReply(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`durable` is how many events of the log are on stable storage, None when the host does not count them.

    "detached": the owner no longer holds the Session, or holds another life of it.
    """

    request_id: str
    status: FlushStatus
    durable: int | None = None
    reason: str = ""


_requests = msgspec.msgpack.Decoder(FlushRequest)
_replies = msgspec.msgpack.Decoder(FlushReply)


def encode_request(request: FlushRequest) -> bytes:
    return msgspec.msgpack.encode(request)


def decode_request(data: bytes) -> FlushRequest:
    """Raises `msgspec.MsgspecError` for anything that is not a flush request."""
    return decoded(_requests, data)


def encode_reply(reply: FlushReply) -> bytes:
    """Ready to be pushed on a wake list."""
    return REPLY_MARK + msgspec.msgpack.encode(reply)


def decode_reply(ring: bytes) -> FlushReply:
    """Raises `msgspec.MsgspecError` for anything that is not a flush reply behind its mark."""
    return decoded(_replies, ring.removeprefix(REPLY_MARK))
