"""Who is behind a request, and what they may do."""

from enum import StrEnum

from msgspec import Struct


class Scope(StrEnum):
    """What a token allows."""

    READ = "read"
    """Lists, items, events; Sessions and their transcripts."""
    RATE = "rate"
    """Putting and deleting feedback."""


EVERYTHING = frozenset(Scope)


class Principal(Struct, frozen=True):
    """Whoever made a request. `actor` rides in their commands; `bucket` is what their requests are counted under."""

    actor: str | None
    scopes: frozenset[Scope]
    bucket: str | None


ANYBODY = Principal(None, EVERYTHING, None)
"""On the loopback, where nobody has to say who they are."""
