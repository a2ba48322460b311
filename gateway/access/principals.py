"""Who is behind a request, and what they may do."""

from enum import StrEnum

from msgspec import Struct

from feedback.requests import MAX_ACTOR_BYTES

SUBJECT = "sub:"
"""Before an issuer's `sub` in an actor. No label begins so: whoever has one is nobody at the issuer."""


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


def is_actor(text: object) -> bool:
    """Whether audit trail and log can name somebody so: printable text, not blank, not too long for a command."""
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        return False
    return len(text.encode()) <= MAX_ACTOR_BYTES


ANYBODY = Principal(None, EVERYTHING, None)
"""On the loopback, where nobody has to say who they are."""
