"""Access tokens of an OIDC issuer: JWTs, checked offline against its public keys."""

import jwt

from feedback.requests import MAX_ACTOR_BYTES
from gateway.access.keyset import KeySet
from gateway.access.principals import EVERYTHING, Principal, Scope

LEEWAY_S = 30
"""How far the issuer's clock may be from this one's."""
SCOPE_PREFIX = "feedback:"
"""`feedback:read`, `feedback:rate`: a token whose `scope` names any of ours may do only that."""

_MOST_BYTES = 16 * 1024
_REQUIRED = ["exp", "iss", "aud", "sub"]


class Issuer:
    """Checks tokens of one issuer that are meant for one audience."""

    def __init__(self, keys: KeySet, issuer: str, audience: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience

    async def principal(self, token: str) -> Principal | None:
        """Who the token speaks for; None when it does not count: signature, issuer, audience, times, subject.

        Raises:
            IssuerUnavailable: its keys are not to be had.
        """
        if len(token) > _MOST_BYTES:
            return None
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = await self._keys.key(kid if isinstance(kid, str) else None)
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key=key.key,
                algorithms=list(key.algorithms),
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        subject = claims["sub"]
        if not _is_actor(subject):
            return None
        return Principal(subject, _scopes(claims.get("scope", claims.get("scp"))), f"sub:{subject}")


def _is_actor(subject: object) -> bool:
    if not isinstance(subject, str) or not subject:
        return False
    try:
        return len(subject.encode()) <= MAX_ACTOR_BYTES
    except UnicodeEncodeError:
        return False


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
