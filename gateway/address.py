"""Where a gateway listens. Loads nothing of the web server, so that `feedback up` can look before it starts one."""

import socket

from feedback.errors import SettingsInvalid
from feedback.settings import Settings

_BACKLOG = 1024


def listen(settings: Settings) -> socket.socket:
    """A socket that accepts connections already; they wait until somebody takes them.

    Raises:
        SettingsInvalid: address or port cannot be had.
    """
    host, port = settings.gateway_host, settings.gateway_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the standard library says it in its own words, too
        raise SettingsInvalid(f"gateway_host, gateway_port: {host}:{port}: {reason}") from None


def url_of(settings: Settings, port: int) -> str:
    """What a browser on this machine is to be told."""
    host = settings.gateway_host
    scheme = "https" if settings.gateway_certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
