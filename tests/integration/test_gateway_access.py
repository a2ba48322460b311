"""Who may: tokens, an issuer's access tokens, scopes, rates, origins; and that the actor is who the token says."""

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from feedback.connection import connect
from feedback.errors import SettingsInvalid
from feedback.events import decode_event
from feedback.settings import Settings
from gateway.access.issuer import Issuer
from gateway.access.keyset import ASK_EVERY_S, FRESH_S, STALE_S, IssuerUnavailable, KeySet
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from gateway.address import listen
from gateway.context import Gateway
from persistence.sidecar import open_store
from persistence.sidecar.store import HISTORY_START
from tests.harness import serving, settings_for, write_session
from tests.integration.gateway_issuer import AUDIENCE, LocalIssuer, issuing
from tests.integration.gateway_serving import caller, gateway_serving, item_path, remote

pytestmark = pytest.mark.server

NEW = {"If-None-Match": "*"}
GOOD = {"rating": "positive"}
LIST = "/sessions/s/feedback"


@pytest.fixture(scope="module")
def settings(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with connect(valkey_url) as redis:
        redis.flushall()
    settings = settings_for(valkey_url, tmp_path_factory.mktemp("home"), gateway_port=0)
    write_session(settings, "s", *(f"m{number}" for number in range(20)))
    with serving(settings):
        yield settings


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The issuer of these tests is on this machine, which may be busy."""
    for bound in ("keyset.PATIENCE_S", "jwks._SILENCE_S", "jwks._WITHIN_S"):
        monkeypatch.setattr(f"gateway.access.{bound}", 60.0)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


@pytest.fixture
def guarded(settings: Settings, tokens: TokenFile) -> Settings:
    """The same system; its gateway has a file of tokens of this test's own."""
    return msgspec.structs.replace(settings, gateway_tokens=str(tokens.path))


def create(tokens: TokenFile, label: str = "ada", *scopes: Scope, expires_at: int | None = None) -> str:
    return tokens.create(label, scopes or tuple(Scope), now_ms=0, expires_at=expires_at)[0]


def actors(settings: Settings) -> dict[str, str | None]:
    """Who the audit trail says touched each message."""
    with closing(open_store(settings.sidecar_url)) as store:
        events = [decode_event(one.event) for one in store.history("s", HISTORY_START, 1000)]
    return {event.message_id: event.actor for event in events}


def test_nobody_gets_in_without_a_token_that_counts(guarded: Settings, tokens: TokenFile) -> None:
    """On every route but health and description; the first token closes the door, revoking the last keeps it shut."""
    everywhere = (
        ("GET", LIST),
        ("GET", item_path("s", "m0")),
        ("PUT", item_path("s", "m0")),
        ("DELETE", item_path("s", "m0")),
        ("GET", "/events"),
        ("GET", "/sessions/s/events"),
        *(("POST", f"/api/messageFeedback/{verb}") for verb in ("list", "put", "delete")),
    )
    with gateway_serving(guarded) as url, caller(url) as client:
        assert client.get(LIST).status_code == 200, "no tokens yet, and only this machine"
        token = create(tokens)
        described = client.get("/openapi.json").json()["paths"]
        assert sorted(described) == sorted({"/healthz", "/readyz", *(path_of(url_path) for _, url_path in everywhere)})
        for method, path in everywhere:
            refused = client.request(method, path)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized"), path
            assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
        for open_to_all in ("/healthz", "/readyz", "/openapi.json"):
            assert client.get(open_to_all).status_code == 200
        for header in (f"Bearer {token}x", f"Basic {token}", token, "Bearer", "Bearer eyJhbGciOiJub25lIn0.e30."):
            assert client.get(LIST, headers={"Authorization": header}).status_code == 401
        with caller(url, token) as ada:
            assert ada.get(LIST).status_code == 200
            expired = create(tokens, "old", expires_at=1)
            assert client.get(LIST, headers={"Authorization": f"Bearer {expired}"}).status_code == 401
            for record in tokens.read():
                tokens.revoke(record.id)
            assert ada.get(LIST).status_code == 401
        assert client.get(LIST).status_code == 401, "nobody, not everybody"


def test_what_shows_that_it_came_through_a_proxy_is_nobody_of_this_machine(guarded: Settings) -> None:
    """A header of it, or HTTP/1.0, which nginx speaks where nobody told it more; until there are tokens."""
    with gateway_serving(guarded) as url:
        where = httpx.URL(url)

        def status(version: str, *headers: str) -> int:
            lines = (f"GET {LIST} HTTP/{version}", f"Host: {where.netloc.decode()}", "Connection: close", *headers)
            with (
                socket.create_connection((where.host, where.port or 80)) as connection,
                connection.makefile("rb") as answer,
            ):
                connection.sendall("\r\n".join((*lines, "", "")).encode())
                return int(answer.readline().split()[1])

        assert status("1.1") == 200
        assert status("1.0") == 401
        for header in ("X-Forwarded-For: 192.0.2.1", "x-forwarded-proto: https", "Via: 1.1 proxy", "Forwarded: for=a"):
            assert status("1.1", header) == 401, header


def path_of(url_path: str) -> str:
    """As the description names it."""
    return url_path.replace("/s/", "/{session}/").replace("/m0", "/{message}")


def test_the_actor_is_the_tokens_and_a_request_cannot_set_it(
    guarded: Settings, tokens: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    """In both forms of the contract; and no token, note or query is in the log."""
    caplog.set_level(logging.DEBUG)
    ada, reader = create(tokens, "ada"), create(tokens, "eve", Scope.READ)
    with gateway_serving(guarded) as url, caller(url, ada) as client:
        put = client.put(item_path("s", "m1"), json=GOOD | {"note": "private"}, headers=NEW | {"X-Actor": "mallory"})
        assert put.status_code == 201
        assert remote(client, "put", {"sessionId": "s", "messageId": "m2", "ifVersion": None} | GOOD)["value"]["ok"]
        assert client.get(LIST, params={"token": "secret"}).status_code == 200
        with caller(url, reader) as eve:
            assert eve.get(LIST).status_code == 200
            refused = eve.put(item_path("s", "m3"), json=GOOD, headers=NEW)
            assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")
            assert 'scope="rate"' in refused.headers["WWW-Authenticate"]
            answer = eve.post("/api/messageFeedback/put", json={})
            assert answer.status_code == 403
    assert actors(guarded).items() >= {"m1": "ada", "m2": "ada"}.items()
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    logged = [record.getMessage() for record in ours]
    assert any("method=PUT path=/sessions/s/feedback/m1 status=201" in line and "actor=ada" in line for line in logged)
    assert any("path=/sessions/s/feedback/m3 status=403" in line and "actor=eve" in line for line in logged)
    for secret in (ada, reader, "private", "token=secret"):
        assert not any(secret in line for line in logged)


def test_a_token_that_asks_too_often_is_told_to_wait(guarded: Settings, tokens: TokenFile) -> None:
    """Others are not held up by it."""
    slow = msgspec.structs.replace(guarded, gateway_rate=0.01)
    one, another = create(tokens), create(tokens)
    with gateway_serving(slow) as url, caller(url, one) as client:
        assert client.get(LIST).status_code == 200
        limited = client.get(LIST)
        assert (limited.status_code, limited.json()["code"]) == (429, "rate-limited")
        assert 0 < int(limited.headers["Retry-After"]) <= 100
        with caller(url, another) as other:
            assert other.get(LIST).status_code == 200


def test_pages_of_other_sites_may_only_if_they_are_named(settings: Settings) -> None:
    """A forged request is refused before it does anything; CORS is answered for named origins alone."""
    path = item_path("s", "m4")
    friend, foe = {"Origin": "https://friend.example"}, {"Origin": "https://foe.example"}
    named = msgspec.structs.replace(settings, gateway_origins="https://friend.example")
    preflight = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization,if-match"}
    with gateway_serving(settings) as url, caller(url) as client:
        for headers in (friend, foe, {"Origin": "null"}, {"Host": "rebound.example"}, {"Sec-Fetch-Site": "cross-site"}):
            refused = client.put(path, json=GOOD, headers=NEW | headers)
            assert refused.status_code in (403, 421)
            assert client.post("/api/messageFeedback/list", headers=headers).status_code in (403, 421)
        assert client.options(path, headers=friend | preflight).status_code == 405
        assert client.get(path).status_code == 404, "nothing was done"
    with gateway_serving(named) as url, caller(url) as client:
        allowed = client.options(path, headers=friend | preflight)
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://friend.example"
        assert "Access-Control-Allow-Credentials" not in allowed.headers
        assert "Access-Control-Allow-Origin" not in client.options(path, headers=foe | preflight).headers
        assert client.put(path, json=GOOD, headers=NEW | foe).status_code == 403
        done = client.put(path, json=GOOD, headers=NEW | friend)
        assert (done.status_code, done.headers["Access-Control-Allow-Origin"]) == (201, "https://friend.example")
        assert "ETag" in done.headers["Access-Control-Expose-Headers"]


def test_it_answers_at_the_url_that_it_says_wherever_on_the_loopback(settings: Settings) -> None:
    """At an address that is not the usual one, too; under no other name."""
    with gateway_serving(msgspec.structs.replace(settings, gateway_host="127.0.0.2")) as url, caller(url) as client:
        own = client.put(item_path("s", "unknown"), json=GOOD, headers=NEW | {"Origin": url})
        assert (own.status_code, own.json()["code"]) == (404, "target-not-found")
        assert client.get(LIST, headers={"Host": "rebound.example"}).status_code == 421


def test_off_the_loopback_it_refuses_to_start_without_authentication(settings: Settings, tokens: TokenFile) -> None:
    """And says what to do; so it does when tokens or issuer cannot be used."""
    public = msgspec.structs.replace(settings, gateway_host="0.0.0.0", gateway_tokens=str(tokens.path))
    with pytest.raises(SettingsInvalid, match=r"0\.0\.0\.0 is not the loopback.*feedback token create"):
        Gateway(public)
    with pytest.raises(SettingsInvalid, match=r"gateway_hosts: a\.example is not the loopback"):
        Gateway(msgspec.structs.replace(public, gateway_host="127.0.0.1", gateway_hosts="a.example"))
    for issuer, audience, reason in (
        ("https://issuer.example", "", "gateway_audience"),
        ("http://issuer.example", "a", "no https URL"),
        ("issuer.example", "a", "no https URL"),
    ):
        half = msgspec.structs.replace(public, gateway_issuer=issuer, gateway_audience=audience)
        with pytest.raises(SettingsInvalid, match=reason):
            Gateway(half)
    with pytest.raises(SettingsInvalid, match=r"192\.0\.2\.1:0: Cannot assign requested address$"):
        listen(msgspec.structs.replace(public, gateway_host="192.0.2.1"))
    create(tokens)
    with gateway_serving(public) as url, caller(url) as client:
        assert client.get(LIST, headers={"Host": "any.example"}).status_code == 401
    tokens.path.chmod(0o644)
    with pytest.raises(SettingsInvalid, match="chmod 600"):
        Gateway(public)


def defective(issuer: LocalIssuer) -> dict[str, str]:
    """Tokens that must not count, by what is wrong with them."""
    now = int(time.time())
    stranger = rsa.generate_private_key(65537, 2048)
    good = issuer.token()
    header, payload, signature = good.split(".")
    public = issuer.keys["rsa"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    symmetric = _segment(b'{"alg":"HS256","kid":"rsa"}') + "." + payload
    forged = hmac.digest(public, symmetric.encode(), hashlib.sha256)
    return {
        "signed by somebody else": issuer.token(key=stranger),
        "of another issuer": issuer.token(iss="https://other.example"),
        "for another audience": issuer.token(aud="billing"),
        "expired": issuer.token(exp=now - 60),
        "not valid yet": issuer.token(nbf=now + 60),
        "without an end": issuer.token(exp=None),
        "without a subject": issuer.token(sub=None),
        "without an audience": issuer.token(aud=None),
        "a subject too long for an actor": issuer.token(sub="x" * 253),
        "an empty subject": issuer.token(sub=""),
        "a blank subject": issuer.token(sub=" "),
        "a subject of two lines": issuer.token(sub="grace\nactor=root"),
        "a subject that moves the cursor": issuer.token(sub="grace\x1b[2K"),
        "a subject that turns what is behind it around": issuer.token(sub="grace\u202e"),
        "an ID token by its nonce": issuer.token(nonce="n"),
        "an ID token by its hash": issuer.token(at_hash="h"),
        "an ID token by its issuer's own word": issuer.token(typ="ID"),
        "a logout token": issuer.token(header_typ="logout+jwt"),
        "a logout token by its claim": issuer.token(events={}),
        "not signed": _segment(b'{"alg":"none","kid":"rsa"}') + f".{payload}.",
        "signed with the public key as a secret": f"{symmetric}.{_segment(forged)}",
        "of a key that the issuer does not have": issuer.token(key=stranger, kid="unknown"),
        "of the algorithm of another key": issuer.token("ec", "ES256").replace(".", "x.", 1),
        "changed": f"{header}." + _segment(b'{"sub":"root"}') + f".{signature}",
        "too long": f"{good}{'A' * 20_000}",
        "no token": "a.b.c",
    }


def _segment(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_an_issuers_token_speaks_for_its_subject(settings: Settings, tokens: TokenFile) -> None:
    """Signature, issuer, audience, times and subject all count; its scopes narrow what it may; tokens of ours go on."""
    with issuing() as issuer:
        ours = create(tokens)
        trusting = msgspec.structs.replace(
            settings, gateway_issuer=issuer.url, gateway_audience=AUDIENCE, gateway_tokens=str(tokens.path)
        )
        with gateway_serving(trusting) as url, caller(url) as client:

            def status(token: str, path: str = LIST) -> int:
                return client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code

            now = int(time.time())
            assert status(issuer.token()) == 200
            assert status(issuer.token("ec", "ES256")) == 200
            assert status(issuer.token(algorithm="PS256")) == 200
            assert status(issuer.token(header_typ="")) == 200
            assert status(issuer.token(header_typ="application/AT+JWT", nonce="n")) == 200
            assert status(issuer.token(sub="x" * 252)) == 200
            assert status(issuer.token(exp=now - 5, nbf=now + 5)) == 200, "clocks differ a little"
            assert status(ours) == 200
            assert {what: status(token) for what, token in defective(issuer).items() if status(token) != 401} == {}
            narrow: tuple[dict[str, Any], ...] = (
                {"scope": "openid feedback:read"},
                {"scope": ["openid", "feedback:read"]},
                {"scp": ["feedback:read"]},
                {"scope": {"feedback:rate": True}},
            )
            for claims in narrow:
                headers = NEW | {"Authorization": f"Bearer {issuer.token(**claims)}"}
                assert client.put(item_path("s", "m5"), json=GOOD, headers=headers).status_code == 403, claims
            headers["Authorization"] = f"Bearer {issuer.token(scope='feedback:read feedback:rate')}"
            assert client.put(item_path("s", "m5"), json=GOOD, headers=headers).status_code == 201
        assert actors(settings)["m5"] == "sub:grace"


def test_which_types_of_token_count_can_be_said() -> None:
    """Then nothing else decides: an issuer with types of its own, or with a nonce in its access tokens, can be used."""
    marked = {"nonce": "n", "at_hash": "h"}
    cases: tuple[tuple[str, str, dict[str, str], bool], ...] = (
        ("at+jwt", "at+jwt", {}, True),
        ("application/at+jwt, other", "OTHER", {}, True),
        ("at+jwt", "JWT", {}, False),
        ("at+jwt", "", {}, False),
        ("JWT", "", marked, True),
        ("JWT", "at+jwt", {}, False),
        ("", "other", {}, False),
    )
    with issuing() as issuer:
        for types, header_typ, claims, counts in cases:
            checking = Issuer(KeySet(issuer.url), issuer.url, AUDIENCE, types)
            principal = asyncio.run(checking.principal(issuer.token(header_typ=header_typ, **claims)))
            assert (principal is not None) == counts, (types, header_typ)


def test_an_issuer_out_of_reach_is_503(settings: Settings, tokens: TokenFile) -> None:
    with issuing() as issuer:
        issuer.is_down = True
        trusting = msgspec.structs.replace(
            settings, gateway_issuer=issuer.url, gateway_audience=AUDIENCE, gateway_tokens=str(tokens.path)
        )
        with gateway_serving(trusting) as url, caller(url, issuer.token()) as client:
            refused = client.get(LIST)
            assert (refused.status_code, refused.json()["code"]) == (503, "authentication-unavailable")
            assert refused.headers["Retry-After"] == "1"


def test_keys_are_kept_fetched_anew_and_forgotten_in_time() -> None:
    """A new key counts within `ASK_EVERY_S`; keys outlive an issuer's outage, but not for ever."""
    with issuing() as issuer:
        now = 0.0
        keys = KeySet(issuer.url, clock=lambda: now)

        async def known(kid: str | None) -> bool:
            return await keys.key(kid) is not None

        async def run() -> None:
            nonlocal now
            assert await asyncio.gather(*(known("rsa") for _ in range(5))) == [True] * 5
            assert len(issuer.asked) == 2, "asked once for all of them"
            assert not await known(None), "two keys: a token must say which"
            issuer.keys["new"] = issuer.keys.pop("ec")
            assert not await known("new")
            assert not await known("made up")
            assert len(issuer.asked) == 2, "whatever keys are made up"
            now += ASK_EVERY_S
            assert await known("new")
            assert not await known("ec")
            issuer.is_down = True
            now += FRESH_S + 1
            assert await known("rsa")
            now += STALE_S
            with pytest.raises(IssuerUnavailable):
                await known("rsa")
            issuer.is_down = False
            now += ASK_EVERY_S
            assert await known("rsa")
            issuer.names, now = "https://other.example", now + STALE_S + 1
            with pytest.raises(IssuerUnavailable):
                await known("rsa")

        asyncio.run(run())
