"""A proxy that remembers what passed through it: which round trips a part of the system makes, and in which order."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

from tests.proxy import Proxy, Request, Trap

RoundTrip: TypeAlias = str
"""A kind of request: a script's name, or a command's and the family of its first key."""

_PACKAGES = Path(__file__).parents[1]
_OWN_WORDS = ("CLIENT", "XINFO", "SCRIPT")


@cache
def _scripts() -> dict[bytes, str]:
    """Digest -> name of every script there is."""
    found = {}
    for path in _PACKAGES.glob("*/scripts/*.lua"):
        digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
        found[digest.encode()] = f"{path.parts[-3]}/{path.stem}"
    return found


def kind_of(request: Request) -> RoundTrip:
    """What a request does, without what differs from one time to the next."""
    name = request[0].decode().upper()
    script = name.removesuffix("_RO")
    if script == "EVAL":
        return _scripts().get(hashlib.sha1(request[1], usedforsecurity=False).hexdigest().encode(), "foreign script")
    if script == "EVALSHA":
        return _scripts().get(request[1], "foreign script")
    if name in _OWN_WORDS:
        return f"{name} {request[1].decode().upper()}"
    key = next((part for part in request[1:] if b":" in part), b"")
    return f"{name} {b':'.join(key.split(b':')[:2]).decode(errors='replace')}".strip()


def is_kind(kind: RoundTrip) -> Callable[[Request], bool]:
    return lambda request: kind_of(request) == kind


class WatchingProxy(Proxy):
    """Notes each request in `journal`, under its own name; several may share one, which then tells their order."""

    def __init__(self, url: str, name: str = "", journal: list[tuple[str, RoundTrip]] | None = None) -> None:
        self.name = name
        self.journal: list[tuple[str, RoundTrip]] = [] if journal is None else journal
        super().__init__(url)

    def trap_of(self, request: Request) -> Trap | None:
        self.journal.append((self.name, kind_of(request)))
        return super().trap_of(request)

    def redirect(self, url: str) -> None:
        """From now on lead to another server, as a failover does; connections to the former one break."""
        with Proxy(url) as other:
            self._server = other._server
        self.cut_all()
