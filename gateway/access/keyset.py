"""An issuer's public keys: fetched over HTTP from the configured issuer alone, and kept with bounds."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http.client import HTTPException
from time import monotonic
from typing import Any, NoReturn
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
import msgspec
from msgspec import Struct

from feedback.errors import SettingsInvalid
from gateway.web.origins import is_loopback

FRESH_S = 600.0
"""Keys are fetched again when they are older."""
STALE_S = 3600.0
"""Keys older than this count for nothing, however long the issuer is out of reach."""
ASK_EVERY_S = 10.0
"""The issuer is not asked more often, whatever keys callers make up."""

_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Asymmetric ones only: a symmetric "key" in a public document is none."""
_MOST_BYTES = 256 * 1024
_MOST_KEYS = 64
_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]
"""GETs a URL, blocking. Raises OSError."""


class SigningKey(Struct, frozen=True):
    """A public key, and the algorithms that a token signed with it may name."""

    key: Any
    algorithms: tuple[str, ...]


class IssuerUnavailable(Exception):
    """The issuer's keys are not to be had right now."""


class KeySet:
    """The keys of one issuer, by `kid`. For one event loop."""

    def __init__(self, issuer: str, fetch: Fetch | None = None, clock: Callable[[], float] = monotonic) -> None:
        """`issuer` is as in its tokens' `iss`. Nothing is fetched yet.

        Raises:
            SettingsInvalid: it is no https URL (http is for the loopback).
        """
        check_issuer_url(issuer)
        self._issuer = issuer
        self._fetch = fetch or fetch_bytes
        self._clock = clock
        self._lock = asyncio.Lock()
        self._keys: Mapping[str | None, SigningKey] = {}
        self._fetched_at: float | None = None
        self._asked_at: float | None = None

    async def key(self, kid: str | None) -> SigningKey | None:
        """The key of that id, or the only one for None; None when the issuer has none such.

        Raises:
            IssuerUnavailable: there are no keys that are young enough.
        """
        if self._older_than(FRESH_S) or kid not in self._keys:
            async with self._lock:
                if (self._older_than(FRESH_S) or kid not in self._keys) and self._may_ask():
                    await self._refresh()
        if self._older_than(STALE_S):
            raise IssuerUnavailable
        return self._keys.get(kid)

    def _older_than(self, seconds: float) -> bool:
        return self._fetched_at is None or self._clock() - self._fetched_at > seconds

    def _may_ask(self) -> bool:
        return self._asked_at is None or self._clock() - self._asked_at >= ASK_EVERY_S

    async def _refresh(self) -> None:
        self._asked_at = self._clock()
        try:
            self._keys = await asyncio.to_thread(self._read)
            self._fetched_at = self._clock()
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            _log.warning("issuer out of reach issuer=%s reason=%s", self._issuer, error)

    def _read(self) -> Mapping[str | None, SigningKey]:
        """Discovery (OpenID Connect Discovery 1.0, section 4), then the keys. Raises OSError, ValueError."""
        where = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        about = msgspec.json.decode(self._fetch(where), type=_Discovery)
        if about.issuer != self._issuer:
            raise ValueError(f"the discovery document is of {about.issuer!r}")
        _check_url("jwks_uri", about.jwks_uri)
        return _signing_keys(msgspec.json.decode(self._fetch(about.jwks_uri), type=_Jwks).keys)


class _Discovery(Struct):
    issuer: str
    jwks_uri: str


class _Jwks(Struct):
    keys: list[dict[str, Any]]


def _signing_keys(documents: list[dict[str, Any]]) -> Mapping[str | None, SigningKey]:
    """Keys by id; a lone one also counts for tokens that name none. What is no key for signatures is left out."""
    keys: dict[str | None, SigningKey] = {}
    for document in documents[:_MOST_KEYS]:
        algorithms = _ALGORITHMS.get(str(document.get("kty")), ())
        named = document.get("alg")
        algorithms = tuple(one for one in algorithms if named in (None, one))
        if not algorithms or document.get("use", "sig") != "sig":
            continue
        try:
            keys[document.get("kid")] = SigningKey(jwt.PyJWK(document, algorithms[0]).key, algorithms)
        except jwt.PyJWTError as error:
            _log.warning("key of the issuer left out kid=%s reason=%s", document.get("kid"), error)
    if len(keys) == 1:
        keys[None] = next(iter(keys.values()))
    return keys


def check_issuer_url(url: str) -> None:
    """Raises SettingsInvalid when tokens could not be trusted to come from there."""
    try:
        _check_url("gateway_issuer", url)
    except ValueError as error:
        raise SettingsInvalid(str(error)) from None


def _check_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))):
        raise ValueError(f"{name}: {url!r} is no https URL")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> NoReturn:
        del args
        raise URLError("it answers with a redirect")


def fetch_bytes(url: str) -> bytes:
    """GET a URL of https or http, without following redirects. Raises OSError (or ValueError) when that fails."""
    opener = build_opener(_NoRedirects)
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310  the scheme was checked
    with opener.open(request, timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise OSError(f"it answers with more than {_MOST_BYTES} bytes")
    return body
