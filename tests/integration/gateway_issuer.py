"""An OIDC issuer on this machine, for the tests of the gateway: discovery, keys, tokens of every kind."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "feedback"


class LocalIssuer:
    """An OIDC issuer on this machine, with keys that can be changed, and an answer that can be withheld."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.names = self.url
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(65537, 2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
        }
        self.asked: list[str] = []
        self.is_down = False

    def documents(self, path: str) -> dict[str, Any] | None:
        self.asked.append(path)
        if self.is_down:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.names, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [self._public(kid, key) for kid, key in self.keys.items()] + [{"kty": "oct", "k": "c2VjcmV0"}]}

    def _public(self, kid: str, key: Any) -> dict[str, Any]:
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        return kind.to_jwk(key.public_key(), as_dict=True) | {"kid": kid, "use": "sig"}

    def token(
        self, kid: str = "rsa", algorithm: str = "RS256", key: Any = None, header_typ: str = "JWT", **claims: Any
    ) -> str:
        """An access token of grace; `claims` come on top, and take away what is None. No `header_typ`: an empty one."""
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "grace", "exp": now + 600, "nbf": now - 1, "iat": now}
        members = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(members, key or self.keys[kid], algorithm, headers={"kid": kid, "typ": header_typ})


@contextmanager
def issuing() -> Iterator[LocalIssuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = issuer.documents(self.path)
            body = json.dumps(document or {}).encode()
            self.send_response(200 if document else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = LocalIssuer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
