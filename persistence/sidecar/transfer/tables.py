"""What a store consists of, row by row, in a form that all engines read and write: the unit of moving and comparing."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct

Value: TypeAlias = int | str | bytes | None
Row: TypeAlias = tuple[Value, ...]

_MODULUS = 2**256
_SIZE_OF_NUMBER = 8


class Table(StrEnum):
    """In the order in which they are written: items need their Sessions."""

    TOPOLOGY = "topology"
    """name, value"""
    FENCE = "fence"
    """generation, partition, epoch, owner, sequence"""
    SESSION = "session"
    """place, id, created_at, cwd, revision"""
    ITEM = "item"
    """session id, message id, position, rating, note, version, created_at, updated_at"""
    COMMAND = "command"
    """generation, partition, sequence, id (16 bytes), session id, digest, event, applied_at, expires_at"""


TOPOLOGY_NAMES = ("deployment", "former", "generation", "partitions", "retired")


class Page(Struct, frozen=True):
    """Rows of one table in the order of the engine that they come from, and where it goes on behind them."""

    rows: Sequence[Row]
    cursor: bytes


class Census(Struct, frozen=True):
    """How many rows a table has, and their digest, which does not depend on their order.

    It is the sum of the rows' SHA-256 digests, modulo 2^256, in hexadecimal.
    """

    rows: int = 0
    digest: str = f"{0:064x}"

    def over(self, rows: Iterable[Row]) -> "Census":
        """This one, with more rows."""
        count, total = self.rows, int(self.digest, 16)
        for row in rows:
            count += 1
            total += int.from_bytes(sha256(msgspec.msgpack.encode(row)).digest())
        return Census(count, f"{total % _MODULUS:064x}")


Censuses: TypeAlias = dict[Table, Census]


class Reached(Struct, frozen=True):
    """How far a table has been copied: the source's cursor behind the last row, and how many rows."""

    cursor: bytes
    rows: int


class Progress(Struct):
    """What a copy knows of itself; it moves with the rows. `censuses` is there when all is copied and compared."""

    reached: dict[Table, Reached] = {}
    censuses: Censuses = {}


class Mark(Struct, frozen=True):
    """A store's part in a transfer: which one, where the other store is, whether that is finished."""

    transfer: bytes
    peer: str
    finished: bool
    progress: Progress


def size_of(rows: Iterable[Row]) -> int:
    """About how many bytes rows take."""
    return sum(len(value) if isinstance(value, str | bytes) else _SIZE_OF_NUMBER for row in rows for value in row)


def cursor_of(key: Sequence[Value]) -> bytes:
    """A place between rows as bytes; what is in it is the engine's business."""
    return msgspec.msgpack.encode(key)


def key_at(cursor: bytes, first: Row) -> Row:
    """The key that a cursor names; `first` is before all rows, for the empty cursor."""
    return tuple(msgspec.msgpack.decode(cursor)) if cursor else first
