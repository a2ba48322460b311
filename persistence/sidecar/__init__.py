"""The sidecar store: where feedback is the truth."""

from pathlib import Path

from feedback.errors import SettingsInvalid
from persistence.sidecar.sqlite import SqliteStore
from persistence.sidecar.store import SidecarStore

__all__ = ["SidecarStore", "SqliteStore", "open_store"]

_SQLITE = "sqlite:///"


def open_store(url: str) -> SidecarStore:
    """Open the store that a deployment's `sidecar_url` names.

    `sqlite:///relative/path` or `sqlite:////absolute/path`; the path is taken to the letter. The file
    is made where there is none, its directory is not.

    Raises:
        SettingsInvalid: another scheme, or no path.
        StoreForeign, StoreUnavailable: as `SqliteStore`.
    """
    if not url.startswith(_SQLITE) or not url.removeprefix(_SQLITE).strip("/"):
        # Another database's URL may hold a password.
        raise SettingsInvalid(
            f"sidecar_url: a URL of scheme {url.partition(':')[0]!r} that names no store; "
            "give sqlite:///relative/path or sqlite:////absolute/path"
        )
    return SqliteStore(Path(url.removeprefix(_SQLITE)))
