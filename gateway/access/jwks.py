"""An issuer's public keys as it publishes them: over HTTP, from the configured issuer alone, with bounds."""

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
import msgspec
from msgspec import Struct

from feedback.errors import SettingsInvalid
from gateway.web.origins import is_loopback

_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Asymmetric ones only: a symmetric "key" in a public document is none."""
_FEWEST_RSA_BITS = 2048  # RFC 7518, section 3.3
_MOST_BYTES = 256 * 1024
_MOST_KEYS = 64
_SILENCE_S = 5.0
_WITHIN_S = 10.0
_CHUNK_BYTES = 16 * 1024

_log = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]
"""GETs a URL, blocking. Raises OSError."""


class SigningKey(Struct, frozen=True):
    """A public key, and the algorithms that a token signed with it may name."""

    key: Any
    algorithms: tuple[str, ...]


class _Discovery(Struct):
    issuer: str
    jwks_uri: str


class _Jwks(Struct):
    keys: list[Any]


class _Jwk(Struct):
    """What a JWK (RFC 7517, section 4) says about its key."""

    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str = "sig"


def published_keys(issuer: str, fetch: Fetch) -> Mapping[str | None, SigningKey]:
    """Discovery (OpenID Connect Discovery 1.0, section 4), then the keys, by id. Raises OSError, ValueError."""
    where = issuer.rstrip("/") + "/.well-known/openid-configuration"
    about = msgspec.json.decode(fetch(where), type=_Discovery)
    if about.issuer != issuer:
        raise ValueError(f"the discovery document is of {about.issuer!r}")
    _check_url("jwks_uri", about.jwks_uri)
    return signing_keys(msgspec.json.decode(fetch(about.jwks_uri), type=_Jwks).keys)


def signing_keys(documents: list[Any]) -> Mapping[str | None, SigningKey]:
    """Keys by id; a lone one also counts for tokens that name none.

    What is no key for signatures is left out; so is one that cannot be used, with a warning: it hides no other.
    """
    keys: dict[str | None, SigningKey] = {}
    for number, document in enumerate(documents[:_MOST_KEYS]):
        try:
            about = msgspec.convert(document, _Jwk)
            if key := _signing_key(about, document):
                keys[about.kid] = key
        except (jwt.PyJWTError, ValueError) as error:
            _log.warning("key of the issuer left out number=%d reason=%s", number, error)
    if len(keys) == 1:
        keys[None] = next(iter(keys.values()))
    return keys


def _signing_key(about: _Jwk, document: dict[str, Any]) -> SigningKey | None:
    """The key of a JWK; None for one of another use. Raises PyJWTError, ValueError."""
    algorithms = tuple(one for one in _ALGORITHMS.get(about.kty, ()) if about.alg in (None, one))
    if not algorithms or about.use != "sig":
        return None
    if "d" in document:
        raise ValueError("it is a private key, and public now")
    key = jwt.PyJWK(document, algorithms[0]).key
    if about.kty == "RSA" and key.key_size < _FEWEST_RSA_BITS:
        raise ValueError(f"it has {key.key_size} bits, fewer than {_FEWEST_RSA_BITS}")
    return SigningKey(key, algorithms)


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
    def redirect_request(self, *args: object) -> None:
        """None: a redirect is an error as any other status is."""
        del args


def fetch_bytes(url: str) -> bytes:
    """GET a URL of https or http, without following redirects. Raises OSError (or ValueError) when that fails."""
    opener = build_opener(_NoRedirects)
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310  the scheme was checked
    body, until = bytearray(), monotonic() + _WITHIN_S
    try:
        with opener.open(request, timeout=_SILENCE_S) as answer:
            while chunk := answer.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise OSError(f"it answers with more than {_MOST_BYTES} bytes")
                if monotonic() > until:
                    raise OSError(f"it does not answer within {_WITHIN_S:g} s")
    except HTTPError as error:
        error.close()
        raise OSError(f"it answers with status {error.code}") from None
    return bytes(body)
