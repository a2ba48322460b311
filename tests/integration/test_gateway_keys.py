"""An issuer's keys: who waits for them, how often it is asked, and which keys count."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.access.jwks import fetch_bytes, signing_keys
from gateway.access.keyset import ASK_EVERY_S, FRESH_S, LONGEST_PAUSE_S, STALE_S, IssuerUnavailable, KeySet

ISSUER = "https://issuer.example"
HANGS_S = 60.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up waiting in these tests, however slow the machine is."""
    monkeypatch.setattr("gateway.access.keyset.PATIENCE_S", HANGS_S)


def jwk(kid: object, **members: object) -> dict[str, Any]:
    key = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    return key | {"kid": kid, "use": "sig"} | members


class Published:
    """What an issuer answers, how often it was asked, and a gate that holds its answers up while it is shut."""

    def __init__(self, *kids: str) -> None:
        self.keys = [jwk(kid) for kid in kids]
        self.asked = 0
        self.is_down = False
        self.gate = threading.Event()
        self.gate.set()
        self.now = 0.0
        self.set = KeySet(ISSUER, self.fetch, lambda: self.now)

    def fetch(self, url: str) -> bytes:
        if url.endswith("/keys"):
            return msgspec.json.encode({"keys": self.keys})
        self.asked += 1
        assert self.gate.wait(HANGS_S)
        if self.is_down:
            raise OSError("down")
        return msgspec.json.encode({"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"})

    async def knows(self, kid: str | None) -> bool:
        return await self.set.key(kid) is not None

    async def is_unavailable(self, kid: str | None = "a") -> bool:
        try:
            await self.set.key(kid)
        except IssuerUnavailable:
            return True
        return False

    async def settled(self) -> None:
        """What was begun to be fetched has come, or failed."""
        while self.set._fetching is not None:
            await asyncio.wait({self.set._fetching})


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(test(), HANGS_S)

    asyncio.run(run())


def test_who_has_a_known_key_does_not_wait_for_the_issuer() -> None:
    """However old the keys are, as long as they count; one fetch runs meanwhile, and who needs a new key joins it."""
    issuer = Published("a")

    async def run() -> None:
        assert await issuer.knows("a")
        issuer.keys.append(jwk("new"))
        issuer.gate.clear()
        issuer.now += FRESH_S + 1
        assert [await issuer.knows("a") for _ in range(3)] == [True] * 3, "the issuer hangs all the while"
        waiting = [asyncio.create_task(issuer.knows("new")) for _ in range(3)]
        assert await issuer.knows("a")
        issuer.gate.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        assert issuer.asked == 2

    in_a_loop(run)


def test_an_issuer_that_does_not_answer_is_left_alone_for_longer_each_time() -> None:
    """Nobody waits meanwhile; the keys that are known count until they are stale; when it is back, all is as ever."""
    issuer = Published("a")
    issuer.is_down = True

    async def run() -> None:
        pauses = []
        for _ in range(9):
            asked = issuer.asked
            assert await issuer.is_unavailable()
            assert issuer.asked == asked + 1
            begun = issuer.now
            while issuer.asked == asked + 1:
                issuer.now += 1
                assert await issuer.is_unavailable()
                await issuer.settled()
            pauses.append(issuer.now - begun)
            issuer.now += LONGEST_PAUSE_S
        assert pauses[0] == 1
        assert pauses == sorted(pauses)
        assert pauses[-1] == LONGEST_PAUSE_S
        issuer.is_down = False
        assert await issuer.knows("a")
        issuer.is_down = True
        issuer.now += FRESH_S + 1
        assert await issuer.knows("a")
        await issuer.settled()
        assert await issuer.is_unavailable("b"), "whether it is a new one cannot be told"
        issuer.now += STALE_S
        assert await issuer.is_unavailable()
        issuer.gate.clear()
        issuer.now += LONGEST_PAUSE_S
        first = asyncio.create_task(issuer.is_unavailable())
        await asyncio.sleep(0)  # it begins to ask
        assert await issuer.is_unavailable(), "only one waits for an answer that did not come before"
        issuer.is_down = False
        issuer.gate.set()
        assert not await first

    in_a_loop(run)


def test_made_up_keys_do_not_make_it_ask() -> None:
    """More often than so many seconds."""
    issuer = Published("a")

    async def run() -> None:
        for _ in range(3):
            assert not await issuer.knows("made up")
        assert issuer.asked == 1
        issuer.now += ASK_EVERY_S
        assert not await issuer.knows("made up")
        assert issuer.asked == 2

    in_a_loop(run)


def test_a_key_that_cannot_be_used_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Each one is left out with a warning that shows nothing of it; what has another use is left out without."""
    private = rsa.generate_private_key(65537, 2048)
    small = rsa.generate_private_key(65537, 1024).public_key()
    broken: list[object] = [
        None,
        "a",
        jwk(7),
        jwk(["a"]),
        jwk("x", x="!"),
        jwk("x", x=5),
        jwk("x", crv="P-1"),
        jwk("x", alg=["ES256"]),
        jwt.algorithms.RSAAlgorithm.to_jwk(private, as_dict=True) | {"kid": "private"},
        jwt.algorithms.RSAAlgorithm.to_jwk(small, as_dict=True) | {"kid": "small"},
    ]
    unused: list[object] = [jwk("e", use="enc"), {"kty": "oct", "k": "c2VjcmV0"}, jwk("f", alg="RS256")]
    with caplog.at_level(logging.WARNING):
        found = signing_keys([*broken, *unused, jwk("good")])
    assert found.keys() == {"good", None}
    assert len(caplog.records) == len(broken)
    secret = jwt.algorithms.RSAAlgorithm.to_jwk(private, as_dict=True)["d"]
    assert not any(str(secret) in record.getMessage() for record in caplog.records)


class Misbehaving(BaseHTTPRequestHandler):
    """An issuer whose answers are none that may be taken."""

    def do_GET(self) -> None:
        asked.append(self.path)
        self.send_response({"/moved": 302, "/down": 503}.get(self.path, 200))
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b" " * (300 * 1024 if self.path == "/large" else 1))

    def log_message(self, *args: object) -> None:
        pass


asked: list[str] = []


def test_only_an_answer_of_the_issuer_itself_is_taken() -> None:
    """It is not followed elsewhere, nor read without end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            for path, reason in (
                ("/moved", "status 302"),
                ("/down", "status 503"),
                ("/large", "more than 262144 bytes"),
            ):
                with pytest.raises(OSError, match=reason):
                    fetch_bytes(f"http://127.0.0.1:{server.server_port}{path}")
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/moved", "/down", "/large"]
