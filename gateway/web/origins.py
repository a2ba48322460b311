"""Which pages a request may come from: against forged requests of other sites, and names rebound to the loopback."""

import re
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from feedback.errors import SettingsInvalid
from gateway.web.problems import refused

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", re.ASCII)
_SAFE = ("GET", "HEAD", "OPTIONS")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may lead anywhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_origins(setting: str) -> tuple[str, ...]:
    """`gateway_origins`, each as browsers spell it.

    Raises:
        SettingsInvalid: one of them is no origin.
    """
    return tuple(map(_origin, _words(setting)))


class OriginRule:
    """Decides by `Host`, `Origin` and `Sec-Fetch-Site`. Pure."""

    def __init__(self, *, listens_on: str, hosts: str, origins: tuple[str, ...]) -> None:
        """`hosts` is the setting `gateway_hosts`; `origins` are of other sites that may.

        Raises:
            SettingsInvalid: one of the hosts is no name.
        """
        self._hosts = frozenset(map(_host, _words(hosts)))
        self._checks_host = bool(self._hosts) or is_loopback(listens_on)
        self._origins = frozenset(origins)

    def check(self, method: str, headers: Headers) -> None:
        """Let the request pass.

        Raises:
            Refused: 421 for a Host that is not this server's, 403 for a page of another site.
        """
        host = headers.get("host", "")
        if self._checks_host and not self._is_ours(_name(host)):
            sentence = "This server has no such name (gateway_hosts)."
            raise refused(HTTPStatus.MISDIRECTED_REQUEST, "host-unknown", sentence)
        if self._is_foreign(method, headers, host):
            sentence = "The request comes from a page of another site (gateway_origins)."
            raise refused(HTTPStatus.FORBIDDEN, "origin-foreign", sentence)

    def _is_ours(self, name: str) -> bool:
        """An address of the loopback is, whichever it is: nobody can make another site's name of it."""
        return name in self._hosts or is_loopback(name)

    def _is_foreign(self, method: str, headers: Headers, host: str) -> bool:
        origin = headers.get("origin")
        if origin is None:
            # Old browsers leave Origin out; whoever is no browser sends neither.
            return method not in _SAFE and headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if origin in self._origins:
            return False
        scheme, _, place = origin.partition("://")
        # A proxy that ends TLS changes the scheme; name and port stay.
        return scheme not in _DEFAULT_PORTS or _full(place, scheme) != _full(host, scheme)


def _words(setting: str) -> list[str]:
    return [word for part in setting.split(",") if (word := part.strip())]


def _host(word: str) -> str:
    name = word.lower().removeprefix("[").removesuffix("]")
    if not _NAME.fullmatch(name) and not _is_address(name):
        raise SettingsInvalid(f"gateway_hosts: {word!r} is no name, such as ratings.example; it has no port, nor a *")
    return name


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _origin(word: str) -> str:
    scheme, _, place = word.rstrip("/").lower().partition("://")
    name, port = _name(place), _port(place)
    spelled = place in (name, f"{name}:{port}", f"[{name}]", f"[{name}]:{port}")
    if scheme not in _DEFAULT_PORTS or not name or not spelled:
        raise SettingsInvalid(f"gateway_origins: {word!r} is no origin, such as https://ratings.example")
    return f"{scheme}://{place.removesuffix(f':{_DEFAULT_PORTS[scheme]}')}"


def _name(place: str) -> str:
    """The host's name in `host:port`, in lower case and without brackets; empty when there is none."""
    try:
        return urlsplit(f"//{place}").hostname or ""
    except ValueError:
        return ""


def _port(place: str) -> int | None:
    try:
        return urlsplit(f"//{place}").port
    except ValueError:
        return None


def _full(place: str, scheme: str) -> tuple[str, int]:
    return _name(place), _port(place) or _DEFAULT_PORTS[scheme]
