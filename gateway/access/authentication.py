"""From a request's `Authorization` to a principal (RFC 6750); and who may listen where."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers

from feedback.calls import wall_clock_ms
from feedback.errors import SettingsInvalid
from feedback.settings import Settings
from gateway.access.issuer import Issuer
from gateway.access.keyset import IssuerUnavailable, KeySet
from gateway.access.principals import ANYBODY, Principal, Scope
from gateway.access.tokens import PREFIX, TokenCheck, TokenFile
from gateway.web.origins import is_loopback
from gateway.web.problems import RETRY_AFTER_S, Refused, problem, refused

_CHALLENGE = 'Bearer realm="session-feedback"'
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_OF_PROXIES_TOO = "x-forwarded-"
_OLD_HTTP = "1.0"
"""What nginx speaks to what is behind it, unless it is told otherwise; browsers and clients of today never do."""

_log = logging.getLogger(__name__)


class Authenticator:
    """Knows whose request it is. Where there are neither tokens nor an issuer, everybody may do everything."""

    def __init__(self, tokens: TokenFile, issuer: Issuer | None, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._tokens = tokens
        self._check = TokenCheck(tokens)
        self._issuer = issuer
        self._clock_ms = clock_ms
        self._required = issuer is not None

    @property
    def is_required(self) -> bool:
        """Whether requests have to say who they are. Creating the first token makes it so at once, and for good.

        A file that is gone later (a directory not mounted, a mistake) opens no door.
        """
        self._required = self._required or self._tokens.exists()
        return self._required

    async def principal(self, headers: Headers, http_version: str = "1.1") -> Principal:
        """Who is behind a request with these headers.

        Where nobody has to say so, whoever connects from this machine may: that is who `gateway_host` lets in. A
        proxy on it would pass its own callers off as that, so what shows that it came through one is refused. One
        that hides it cannot be told: `docs/http.md` says so, and the log at the start.

        Raises:
            Refused: 401 without a token that counts; 503 when that cannot be told now.
        """
        if not self.is_required:
            if http_version == _OLD_HTTP or any(map(_is_of_proxies, headers.keys())):
                raise _unauthorized(
                    "Through a proxy nobody gets in before there are tokens (feedback token create).", ""
                )
            return ANYBODY
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthorized("Say Authorization: Bearer <token>.", "")
        token = token.strip()
        found = self._of_file(token) if token.startswith(PREFIX) else await self._of_issuer(token)
        if found is None:
            raise _unauthorized("The token does not count: unknown, revoked or expired.", ', error="invalid_token"')
        return found

    def _of_file(self, token: str) -> Principal | None:
        try:
            record = self._check.find(token, self._clock_ms())
        except SettingsInvalid as error:
            _log.error("tokens cannot be checked reason=%s", error)
            raise _cannot_tell("The tokens cannot be read right now.") from None
        if record is None:
            return None
        return Principal(record.label, frozenset(record.scopes), f"token:{record.id}")

    async def _of_issuer(self, token: str) -> Principal | None:
        if self._issuer is None:
            return None
        try:
            return await self._issuer.principal(token)
        except IssuerUnavailable:
            raise _cannot_tell("The issuer's keys are not to be had right now.") from None


def authenticator_for(settings: Settings) -> Authenticator:
    """The authenticator that the settings ask for.

    Raises:
        SettingsInvalid: nobody would have to say who they are, and not only this machine can reach the gateway;
            tokens or issuer cannot be used.
    """
    tokens = TokenFile(Path(settings.gateway_tokens))
    tokens.read()
    issuer = None
    if settings.gateway_issuer:
        if not settings.gateway_audience:
            raise SettingsInvalid("gateway_audience: required with gateway_issuer: what are its tokens meant for?")
        keys = KeySet(settings.gateway_issuer)
        issuer = Issuer(keys, settings.gateway_issuer, settings.gateway_audience, settings.gateway_token_types)
    found = Authenticator(tokens, issuer)
    if not found.is_required:
        _refuse_exposure(settings)
    return found


def _refuse_exposure(settings: Settings) -> None:
    """Raises SettingsInvalid where others than this machine could reach a gateway at which nobody is asked."""
    exposed = f"gateway_host: {settings.gateway_host}" if not is_loopback(settings.gateway_host) else ""
    if settings.gateway_hosts:
        exposed = exposed or f"gateway_hosts: {settings.gateway_hosts}"
    if exposed:
        raise SettingsInvalid(
            f"{exposed} is not the loopback, and nobody would have to say who they are: "
            "create a token first (`feedback token create LABEL`), or set gateway_issuer"
        )


def _is_of_proxies(header: str) -> bool:
    return header in _OF_PROXIES or header.startswith(_OF_PROXIES_TOO)


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raises `Refused` (403) when the principal may not do that."""
    if scope not in principal.scopes:
        challenge = f'{_CHALLENGE}, error="insufficient_scope", scope="{scope}"'
        detail = f"The token does not allow to {scope}."
        raise Refused(problem(HTTPStatus.FORBIDDEN, "scope-missing", detail), {"WWW-Authenticate": challenge})


def _unauthorized(detail: str, error: str) -> Refused:
    challenge = {"WWW-Authenticate": _CHALLENGE + error}
    return Refused(problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail), challenge)


def _cannot_tell(detail: str) -> Refused:
    return refused(HTTPStatus.SERVICE_UNAVAILABLE, "authentication-unavailable", detail, Retry_After=str(RETRY_AFTER_S))
