"""Access tokens of an OIDC issuer: JWTs, checked offline against its public keys."""

import logging
from collections.abc import Mapping

import jwt

from gateway.access.keyset import KeySet
from gateway.access.principals import EVERYTHING, SUBJECT, Principal, Scope, is_actor

LEEWAY_S = 30
"""How far the issuer's clock may be from this one's."""
SCOPE_PREFIX = "feedback:"
"""`feedback:read`, `feedback:rate`: a token whose `scope` names any of ours may do only that."""

_MOST_BYTES = 16 * 1024
_REQUIRED = ["exp", "iss", "aud", "sub"]
_ACCESS_TOKEN = "at+jwt"  # noqa: S105  a media type: RFC 9068, section 2.1
_ANY_TOKEN = "jwt"  # noqa: S105  as well; what bears no type is taken for it
_ELSEWHERE_ONLY = ("nonce", "at_hash", "c_hash", "events")
"""Claims of ID tokens (OpenID Connect Core 1.0, section 2 and 3.3.2.11) and of logout tokens (Back-Channel Logout 1.0,
section 2.4)."""
_OTHER_KINDS = {"typ": ("id", "refresh", "offline", "logout"), "token_use": ("id",)}
"""How Keycloak and Cognito name the kinds of their tokens, all of which have the header's `typ` JWT or none."""

_log = logging.getLogger(__name__)


class _DoesNotCount(jwt.InvalidTokenError):
    """A token that is well signed, or could be, and still is none for us."""


class Issuer:
    """Checks tokens of one issuer that are meant for one audience."""

    def __init__(self, keys: KeySet, issuer: str, audience: str, types: str = "") -> None:
        """`types` is the setting `gateway_token_types`."""
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._types = frozenset(filter(None, (_type(word.strip()) for word in types.split(","))))

    async def principal(self, token: str) -> Principal | None:
        """Who the token speaks for; None when it does not count: signature, issuer, audience, times, kind, subject.

        Raises:
            IssuerUnavailable: its keys are not to be had.
        """
        if len(token) > _MOST_BYTES:
            return None
        try:
            return await self._checked(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            # For whoever sets the issuer up. Nothing of the token itself.
            reason = str(error) if isinstance(error, _DoesNotCount) else type(error).__name__
            _log.info("token of the issuer refused reason=%s", reason)
            return None

    async def _checked(self, token: str) -> Principal:
        header = jwt.get_unverified_header(token)
        key = await self._keys.key(header.get("kid"))
        if key is None:
            raise _DoesNotCount("the issuer has no such key")
        claims = jwt.decode(
            token,
            key=key.key,
            algorithms=list(key.algorithms),
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_S,
            options={"require": _REQUIRED},
        )
        if not self._is_access_token(header, claims):
            raise _DoesNotCount("it is no access token (gateway_token_types)")
        actor = f"{SUBJECT}{claims['sub']}"
        if not is_actor(claims["sub"]) or not is_actor(actor):
            raise _DoesNotCount("its subject is no actor")
        return Principal(actor, _scopes(claims.get("scope", claims.get("scp"))), actor)

    def _is_access_token(self, header: Mapping[str, object], claims: Mapping[str, object]) -> bool:
        """Whether it is not one of the other kinds, which an issuer signs with the same keys (RFC 9068, section 5)."""
        kind = _type(header.get("typ", _ANY_TOKEN))
        if self._types:
            return kind in self._types
        return kind == _ACCESS_TOKEN or (kind == _ANY_TOKEN and not _is_of_another_kind(claims))


def _type(value: object) -> str:
    """A media type as RFC 7515, section 4.1.9, compares it; empty for what is none."""
    return value.lower().removeprefix("application/") if isinstance(value, str) else ""


def _is_of_another_kind(claims: Mapping[str, object]) -> bool:
    named = any(str(claims.get(claim)).lower() in kinds for claim, kinds in _OTHER_KINDS.items())
    return named or any(claim in claims for claim in _ELSEWHERE_ONLY)


def _scopes(claim: object) -> frozenset[Scope]:
    """What `scope` (RFC 8693: words) or `scp` (a list) allows; one of neither form allows nothing."""
    if isinstance(claim, str):
        words = claim.split()
    elif isinstance(claim, list):
        words = [word for word in claim if isinstance(word, str)]
    elif claim is None:
        words = []
    else:
        return frozenset()
    ours = {word.removeprefix(SCOPE_PREFIX) for word in words if word.startswith(SCOPE_PREFIX)}
    return frozenset(scope for scope in Scope if scope in ours) if ours else EVERYTHING
