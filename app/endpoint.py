"""`DIR/endpoint.json`: how a command finds the system that `feedback up --data DIR` runs.

The file is there exactly while the system is ready to serve. It is private to its owner (mode 0600),
because a server's URL may hold a password.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from app.home import data_flag, is_held
from feedback.connection import connect
from feedback.errors import QueueUnavailable, SettingsInvalid
from feedback.settings import Settings, load_settings
from persistence.atomic_file import replace_file

USUAL_NOTE_BYTES = 8192
"""The bound on notes of a system that `feedback up` starts without being told one."""

_NAME = "endpoint.json"


class Endpoint(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a running system's parts are, and what a further worker must agree with."""

    redis_url: str
    sidecar_url: str
    sessions: str
    max_note_bytes: int
    partitions: int


def write_endpoint(data: Path, settings: Settings) -> None:
    """Publish the system; readers see the whole file or none."""
    endpoint = msgspec.convert(settings, Endpoint, from_attributes=True)
    replace_file(data / _NAME, msgspec.json.encode(endpoint) + b"\n", mode=0o600)


def remove_endpoint(data: Path) -> None:
    """Take the system off the map. Repeatable."""
    with contextlib.suppress(FileNotFoundError):
        (data / _NAME).unlink()


def read_endpoint(data: Path) -> Endpoint | None:
    """The running system's endpoint, or None when none runs in `data`: one that was killed leaves its file behind.

    Raises:
        SettingsInvalid: the file cannot be read or is not an endpoint.
    """
    path = data / _NAME
    try:
        endpoint = msgspec.json.decode(path.read_bytes(), type=Endpoint)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SettingsInvalid(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise SettingsInvalid(f"{path}: not an endpoint: {error}") from None
    return endpoint if is_held(data) else None


def home_defaults(data: Path) -> dict[str, object]:
    """Where a system that lives in `data` keeps its things, when nothing says otherwise."""
    home = data.absolute()
    return {
        "sidecar_url": f"sqlite:///{home / 'sidecar.sqlite3'}",
        "sessions": str(home / "sessions"),
        "gateway_tokens": str(home / "tokens.json"),
    }


def settings_in(
    data: Path,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Settings of a process that joins a system: what is named, else what runs in `data`, else `defaults`.

    A server that is named wins over `data`: what stands there counts only if it is about that server.
    `redis_url` is empty when no server is named and none runs in `data`.

    Raises:
        SettingsInvalid: a setting or the endpoint file is malformed.
    """
    base = {"redis_url": ""} | home_defaults(data) | dict(defaults or {})
    endpoint = read_endpoint(data)
    if endpoint is not None:
        joined = load_settings(flags, environ, config, defaults=base | msgspec.structs.asdict(endpoint))
        if joined.redis_url == endpoint.redis_url:
            return joined
    return load_settings(flags, environ, config, defaults=base)


def require_server(settings: Settings, data: Path) -> str:
    """The server's URL.

    Raises:
        QueueUnavailable: none is named and none runs in `data`.
        SettingsInvalid: what is named is no URL of a server.
    """
    if not settings.redis_url:
        raise QueueUnavailable(f"no system runs in {data.absolute()}: {how_to_start(data)}")
    check_server_url(settings.redis_url)
    return settings.redis_url


def how_to_start(data: Path) -> str:
    """What to do where no system runs."""
    return f"start one with `feedback up {data_flag(data)}`, or name a server by --redis-url or FEEDBACK_REDIS_URL"


def check_server_url(url: str) -> None:
    """Refuse what cannot be a server's URL; nothing is sent.

    Raises:
        SettingsInvalid: saying why.
    """
    try:
        connect(url).close()
    except QueueUnavailable as error:
        raise SettingsInvalid(f"redis_url: {error}") from None
