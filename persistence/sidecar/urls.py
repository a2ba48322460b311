"""Which engine a store's URL means, and what of the URL may be shown."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedback.errors import SettingsInvalid

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
# Where anything is not escaped as it should be, nobody can tell where the password ends.
_SHOWN = re.compile(r"(?:(?P<user>[^:/?#@]*)(?::[^/?#@]*)?@)?(?P<place>[^?#@]*)(?:\?[^@]*)?")


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite store, None for a PostgreSQL one.

    Raises:
        SettingsInvalid: neither, or no path. The URL is not repeated: it may hold a password.
    """
    if url.startswith(_POSTGRES):
        return None
    if not url.startswith(_SQLITE) or not url.removeprefix(_SQLITE).strip("/"):
        raise SettingsInvalid(
            f"sidecar_url: a URL of scheme {url.partition(':')[0]!r} that names no store; give "
            "sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database"
        )
    return Path(url.removeprefix(_SQLITE))


@contextmanager
def driver_needed() -> Iterator[None]:
    """Import what needs PostgreSQL's driver in this block.

    Raises:
        SettingsInvalid: the extra that brings it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise SettingsInvalid(
            "sidecar_url: PostgreSQL needs the extra `postgres`: pip install 'session-feedback[postgres]'"
        ) from error


def public_url(url: str) -> str:
    """The URL as it may be shown and logged: without a password, or anything else that may hold one."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return url
    shown = _SHOWN.fullmatch(rest)
    if shown is None:
        return f"{scheme}://…"
    return f"{scheme}://{shown['user']}@{shown['place']}" if shown["user"] else f"{scheme}://{shown['place']}"
