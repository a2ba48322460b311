"""The sidecar store: where feedback is the truth."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from feedback.errors import SettingsInvalid
from persistence.sidecar.sqlite import SqliteStore
from persistence.sidecar.store import SidecarStore

if TYPE_CHECKING:
    from persistence.sidecar.postgres import PostgresStore

__all__ = ["SidecarStore", "SqliteStore", "find_store", "open_store", "public_url"]

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
# Where anything is not escaped as it should be, nobody can tell where the password ends.
_SHOWN = re.compile(r"(?:(?P<user>[^:/?#@]*)(?::[^/?#@]*)?@)?(?P<place>[^?#@]*)(?:\?[^@]*)?")


def open_store(url: str) -> SidecarStore:
    """Open the store that a deployment's `sidecar_url` names; tables are made where there are none.

    `sqlite:///relative/path` or `sqlite:////absolute/path`; the path is taken to the letter, and the file is made
    where there is none, its directory is not. `postgresql://user:password@host:port/database?options`, as
    PostgreSQL's own library takes it (several hosts, `sslmode`, PGPASSWORD and password files included).

    Raises:
        SettingsInvalid: another scheme, no path, or PostgreSQL without the extra that brings its driver.
        StoreForeign, StoreMoved, StoreUnavailable: as `SqliteStore` and `PostgresStore`.
    """
    if url.startswith(_POSTGRES):
        return _postgres()(url)
    return SqliteStore(_path(url))


def find_store(url: str) -> SidecarStore | None:
    """As `open_store`, but None when none was ever made there: looking must not make one."""
    if url.startswith(_POSTGRES):
        return _postgres().find(url)
    path = _path(url)
    return SqliteStore(path) if path.exists() else None


def public_url(url: str) -> str:
    """The URL as it may be shown and logged: without a password, or anything else that may hold one."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return url
    shown = _SHOWN.fullmatch(rest)
    if shown is None:
        return f"{scheme}://…"
    return f"{scheme}://{shown['user']}@{shown['place']}" if shown["user"] else f"{scheme}://{shown['place']}"


def _path(url: str) -> Path:
    if not url.startswith(_SQLITE) or not url.removeprefix(_SQLITE).strip("/"):
        # Another database's URL may hold a password.
        raise SettingsInvalid(
            f"sidecar_url: a URL of scheme {url.partition(':')[0]!r} that names no store; give "
            "sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database"
        )
    return Path(url.removeprefix(_SQLITE))


def _postgres() -> "type[PostgresStore]":
    try:
        from persistence.sidecar.postgres import PostgresStore  # noqa: PLC0415  an extra, and slow to load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise SettingsInvalid(
            "sidecar_url: PostgreSQL needs the extra `postgres`: pip install 'session-feedback[postgres]'"
        ) from error
    return PostgresStore
