"""Reading msgpack that somebody else wrote: what nests too deeply is malformed, like any other garbage."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """The decoder's value. Raises `msgspec.MsgspecError` (a `ValueError`) for anything that is none."""
    try:
        return decoder.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
