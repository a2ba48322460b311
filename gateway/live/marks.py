"""Where a reader of events is, as `Last-Event-ID` carries it.

Of one Session: `<generation>-<partition>-<sequence>`, which is an event's own id. Of all: `<generation>:` and the
sequence of each partition, with dots between.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from feedback.partitions import PartitionId

_OF_ONE = re.compile(r"(\d{1,10})-(\d{1,4})-(\d{1,15})", re.ASCII)
_OF_ALL = re.compile(r"(\d{1,10}):(\d{1,15}(?:\.\d{1,15})*)", re.ASCII)

MOST_MARK_CHARS = 4096
"""A longer one would be more than headers take: streams of so many partitions have none."""


class Mark(Struct, frozen=True):
    """Everything up to these sequences was seen, in one generation."""

    generation: int
    of_all: bool
    sequences: Mapping[PartitionId, int]


def parse_mark(text: str) -> Mark | None:
    """The mark that a caller gives back; None when it is none of ours."""
    if (one := _OF_ONE.fullmatch(text)) is not None:
        generation, number, sequence = map(int, one.groups())
        return Mark(generation, False, {PartitionId(generation, number): sequence})
    if len(text) <= MOST_MARK_CHARS and (every := _OF_ALL.fullmatch(text)) is not None:
        generation, sequences = int(every[1]), every[2].split(".")
        return Mark(generation, True, {PartitionId(generation, n): int(one) for n, one in enumerate(sequences)})
    return None


def mark_of_one(partition: PartitionId, sequence: int) -> str:
    return f"{partition}-{sequence}"


def mark_of_all(generation: int, sequences: Sequence[int]) -> str | None:
    """None when it would be too long."""
    text = f"{generation}:{'.'.join(map(str, sequences))}"
    return text if len(text) <= MOST_MARK_CHARS else None
