"""What moving needs of an engine: one protocol for both ends of a transfer."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from feedback.errors import SettingsInvalid
from persistence.sidecar.transfer.tables import Mark, Page, Progress, Row, Table

Role: TypeAlias = Literal["source", "target"]

STOPPED = "no worker may commit here"
"""In the error of whoever still tries."""


class StoreEnd(Protocol):
    """A store that serves nobody meanwhile. For one thread; every method may raise `StoreUnavailable`.

    Each method that writes is one durable transaction.
    """

    location: str
    """For people, and to tell stores apart; without a password."""

    def mark(self, role: Role) -> Mark | None:
        """What the store knows of a transfer that it has this part in."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing is stored: no topology, no fence, no row."""
        ...

    def count(self, table: Table) -> int:
        """How many rows a table has."""
        ...

    def page(self, table: Table, cursor: bytes, limit: int) -> Page:
        """Up to `limit` rows behind the cursor (empty: from the first row)."""
        ...

    def begin(self, mark: Mark) -> None:
        """As an empty target: become an unfinished copy, which serves nobody."""
        ...

    def seal(self, mark: Mark) -> None:
        """As the source: refuse every write from now on, whoever tries, also on connections that are open."""
        ...

    def write(self, table: Table, rows: Sequence[Row], before: Progress, after: Progress) -> None:
        """As the target: add rows, and note how far that is.

        Raises:
            SettingsInvalid: it has not come as far as `before`, or farther: another process works on it.
        """
        ...

    def finish(self, role: Role, progress: Progress) -> None:
        """As the target: serve from now on. As the source: never again, also no reads."""
        ...

    def undo(self, role: Role) -> None:
        """As an unfinished target: become empty. As its source: serve again."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...


def check_alone(location: str, known: tuple[bytes] | None, before: Progress) -> None:
    """Refuse to write into a copy that somebody else writes into; `known` is the row with its encoded progress."""
    if known is None or known[0] != msgspec.msgpack.encode(before):
        raise SettingsInvalid(f"--to: another `feedback migrate` works on {location}")
