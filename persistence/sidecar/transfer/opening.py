"""Both ends of a transfer by their URLs."""

from persistence.sidecar.transfer.ends import StoreEnd
from persistence.sidecar.transfer.sqlite import SqliteEnd
from persistence.sidecar.urls import driver_needed, sqlite_path


def open_end(url: str, *, create: bool) -> StoreEnd | None:
    """The store of a URL as an end of a transfer, whatever state that is in; None where there is none.

    `create`: make one where there is none.

    Raises:
        SettingsInvalid, StoreForeign, StoreUnavailable: as `persistence.sidecar.open_store`.
    """
    path = sqlite_path(url)
    if path is not None:
        return SqliteEnd(path) if create or path.exists() else None
    with driver_needed():
        from persistence.sidecar.transfer.postgres import PostgresEnd  # noqa: PLC0415  an extra, and slow to load
    return PostgresEnd(url) if create else PostgresEnd.find(url)
