"""`postgresql://` URLs: what of them may be shown, and what we add where they are silent."""

from typing import TypeAlias
from urllib.parse import quote

import psycopg
from psycopg import conninfo

from feedback.errors import SettingsInvalid

Parameters: TypeAlias = dict[str, str]

_DEFAULTS: Parameters = {
    "connect_timeout": "5",
    # With several hosts, the one that takes writes; a lone standby is refused: it may lag behind what was acknowledged.
    "target_session_attrs": "read-write",
    "application_name": "session-feedback",
    # A peer that is gone without a word is noticed within about eleven seconds.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
}


def parse(url: str) -> Parameters:
    """libpq's parameters for a URL; what it leaves out is libpq's to find (PGPASSWORD, a password file).

    Raises:
        SettingsInvalid: not a URL that libpq takes. The URL is not repeated: it may hold a password.
    """
    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.ProgrammingError:
        given = {"port": "unknown"}
    # What is not escaped in a password ends up in host or port, and would be said in an error about them.
    if "@" in given.get("host", "") or not all(map(str.isdigit, filter(None, given.get("port", "").split(",")))):
        raise SettingsInvalid(
            "sidecar_url: not a URL that PostgreSQL's own library takes; give "
            "postgresql://user:password@host:port/database, with what is special in the password escaped (%40 for @)"
        )
    return _DEFAULTS | given


def location(parameters: Parameters) -> str:
    """The store's place for people and logs, as a URL that may be used again: no password, no options."""
    user = f"{parameters['user']}@" if "user" in parameters else ""
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    named = map(_as_in_url, hosts)
    places = ",".join(f"{host}:{port}" if port else host for host, port in zip(named, ports, strict=True))
    return f"postgresql://{user}{places}/{parameters.get('dbname', '')}"


def _as_in_url(host: str) -> str:
    """A socket's directory and an IPv6 address are written in another way there."""
    return f"[{host}]" if ":" in host else quote(host, safe="")
