"""Lua scripts as files beside the code that calls them, sent by their digest."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError


class Script:
    """One Lua operation: `<package>/scripts/<name>.lua`. Its header says what KEYS, ARGV and the reply are."""

    def __init__(self, package: str, name: str, *, read_only: bool = False) -> None:
        """`read_only`: it writes nothing, so it needs no right to write to its keys."""
        self.name = name
        self._suffix = "_RO" if read_only else ""
        self.source = files(package).joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def by_digest(self, keys: Sequence[str | bytes], args: Sequence[Any]) -> tuple[Any, ...]:
        """The command that the server knows the script for, unless it forgot (NOSCRIPT)."""
        return (f"EVALSHA{self._suffix}", self.sha, len(keys), *keys, *args)

    def by_source(self, keys: Sequence[str | bytes], args: Sequence[Any]) -> tuple[Any, ...]:
        """The command that also teaches the script to the server."""
        return (f"EVAL{self._suffix}", self.source, len(keys), *keys, *args)

    def load(self) -> tuple[Any, ...]:
        """The command that teaches the script to the server, and does nothing else."""
        return ("SCRIPT", "LOAD", self.source)

    def __call__(self, redis: Redis, keys: Sequence[str | bytes], args: Sequence[Any]) -> Any:
        """Run it; a server that restarted or flushed its scripts is taught again."""
        try:
            return redis.execute_command(*self.by_digest(keys, args))
        except NoScriptError:
            return redis.execute_command(*self.by_source(keys, args))
