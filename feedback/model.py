"""The nouns of the contract: what is stored about one message, and which life of a Session it belongs to."""

from typing import Literal

from msgspec import Struct

Rating = Literal["positive", "negative"]

MOST_MILLISECONDS = 2**53 - 1
"""The last time that every JSON reader and database takes."""


class Item(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One person's feedback on one message, as committed.

    `version` is a lower-case random UUID, compared for equality only. Times are
    milliseconds since the Unix epoch. `note` is absent from the JSON when there is none.
    """

    message_id: str
    rating: Rating
    note: str | None = None
    version: str
    created_at: int
    updated_at: int


class SessionIdentity(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which life of a Session feedback is bound to: its header's `{createdAt, cwd}` (CONTRACT, "Lifecycle identity").

    `created_at` in milliseconds since the Unix epoch; `cwd` is None when the header has none.
    """

    created_at: int
    cwd: str | None = None
