"""What a flow may ask of whoever drives it, and how it makes sure of an answer. No I/O."""

import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from redis.exceptions import NoScriptError, RedisError

from feedback.connection import is_passing, is_passing_reply
from feedback.errors import QueueUnavailable
from feedback.lines import Command
from feedback.scripting import Script

T = TypeVar("T")

_FIRST_CONTACT_S = 2.0
"""How long a server that never answered is waited for: a wrong URL should be said early."""


class Call(Struct, frozen=True):
    """Send one Redis command; or it and others behind it in one write, whose replies come as a list."""

    args: Command
    then: tuple[Command, ...] = ()


class Sleep(Struct, frozen=True):
    """Wait so many seconds."""

    seconds: float


class Blocking(Struct, frozen=True):
    """Do something that may wait for a disk, and raises nothing; what it returns is the reply."""

    work: Callable[[], object]


Flow: TypeAlias = Generator[Call | Sleep | Blocking, Any, T]
"""Yields what to do, is sent the reply or thrown the `RedisError`, and returns a T."""


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class Caller:
    """Makes calls that may be repeated, until they are answered or there is no time left."""

    def __init__(self) -> None:
        self.connected = False
        """Whether the server ever answered."""

    def call(self, args: Command, deadline: float, then: tuple[Command, ...] = ()) -> Flow[Any]:
        """One call (`deadline` on the monotonic clock), sent again while its answer is missing.

        Raises:
            NoScriptError: the server does not know the script.
            QueueUnavailable: no answer in time, or a refusal that does not pass by itself.
        """
        first_contact = time.monotonic() + _FIRST_CONTACT_S
        delay = 0.01
        while True:
            try:
                reply = yield Call(args, then)
            except NoScriptError:
                raise
            except RedisError as error:
                # One that is loading its data, or has too many clients, is no wrong URL.
                self.connected |= is_passing_reply(error)
                give_up = deadline if self.connected else min(deadline, first_contact)
                if not is_passing(error) or time.monotonic() + delay > give_up:
                    raise QueueUnavailable(f"Redis: {error}") from error
            else:
                self.connected = True
                return reply
            yield Sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - jitter, not a secret
            delay = min(2 * delay, 1.0)

    def script(
        self,
        script: Script,
        names: Sequence[str],
        args: Sequence[Any],
        deadline: float,
        *,
        then: tuple[Command, ...] = (),
    ) -> Flow[Any]:
        """As `call`, for a script; a server that does not know it is taught."""
        try:
            return (yield from self.call(script.by_digest(names, args), deadline, then))
        except NoScriptError:
            return (yield from self.call(script.by_source(names, args), deadline, then))
