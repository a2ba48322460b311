"""The sidecar store: where feedback is the truth."""

from typing import TYPE_CHECKING

from persistence.sidecar.sqlite import SqliteStore
from persistence.sidecar.store import SidecarStore
from persistence.sidecar.urls import driver_needed, public_url, sqlite_path

if TYPE_CHECKING:
    from persistence.sidecar.postgres import PostgresStore

__all__ = ["SidecarStore", "SqliteStore", "find_store", "open_store", "public_url"]


def open_store(url: str) -> SidecarStore:
    """Open the store that a deployment's `sidecar_url` names; tables are made where there are none.

    `sqlite:///relative/path` or `sqlite:////absolute/path`; the path is taken to the letter, and the file is made
    where there is none, its directory is not. `postgresql://user:password@host:port/database?options`, as
    PostgreSQL's own library takes it (several hosts, `sslmode`, PGPASSWORD and password files included).

    Raises:
        SettingsInvalid: another scheme, no path, or PostgreSQL without the extra that brings its driver.
        StoreForeign, StoreMoved, StoreUnavailable: as `SqliteStore` and `PostgresStore`.
    """
    path = sqlite_path(url)
    return _postgres()(url) if path is None else SqliteStore(path)


def find_store(url: str) -> SidecarStore | None:
    """As `open_store`, but None when none was ever made there: looking must not make one."""
    path = sqlite_path(url)
    if path is None:
        return _postgres().find(url)
    return SqliteStore(path) if path.exists() else None


def _postgres() -> "type[PostgresStore]":
    with driver_needed():
        from persistence.sidecar.postgres import PostgresStore  # noqa: PLC0415  an extra, and slow to load
    return PostgresStore
