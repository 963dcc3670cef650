"""A small OpenID Connect provider on loopback: discovery, keys, sign-in on another device, refresh, revocation.

Signs real tokens with keys that can be changed at any time. A test decides what it says about a user, and when that
user has signed in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey


class IdentityProvider:
    """Use as a context manager. ``claims``: of the person who signs in; None: the user has not signed in yet."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] | None = None
        self.keys: list[Key] = [RSAKey.generate_key(2048, {"kid": "first", "use": "sig"}, auto_kid=False)]
        self.audience = "corral"
        self.lifetime_s = 300
        self.interval_s = 0
        self.is_away = False
        self.reader_token = ""  # what readers of its addresses and keys must show, as at an API server of Kubernetes
        self.name = ""  # the issuer in its tokens, if that is not its URL
        self.codes: dict[str, dict[str, Any]] = {}
        self.refresh_tokens: set[str] = set()
        self.requests: list[tuple[str, dict[str, str]]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(*provider.read(self.path, dict(self.headers.items())))

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                form = {name: values[0] for name, values in parse_qs(self.rfile.read(size).decode()).items()}
                provider.requests.append((self.path, form))
                self._answer(*provider.post(self.path, form))

            def _answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(503 if provider.is_away else status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: object) -> None:
                """Tests print what they need."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> IdentityProvider:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rotate(self) -> None:
        """Sign with a new key; the old ones are no longer published."""
        self.keys = [ECKey.generate_key("P-256", {"kid": secrets.token_hex(4), "use": "sig"}, auto_kid=False)]

    def token(self, claims: dict[str, Any], key: Key | None = None, **changes: Any) -> str:
        """A signed token. A change to None leaves the claim out."""
        now_s = int(time.time())
        times = {"iat": now_s, "exp": now_s + self.lifetime_s}
        stated = {"iss": self.name or self.url, "aud": self.audience} | times | claims | changes
        key = key or self.keys[0]
        header = {"alg": {"RSA": "RS256", "EC": "ES256"}[key.key_type], "kid": key.kid}
        return jwt.encode(header, {name: value for name, value in stated.items() if value is not None}, key)

    def read(self, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        """As ``get``; with a reader's token, it is as strict as an API server of Kubernetes."""
        if self.reader_token:
            if headers.get("Authorization") != f"Bearer {self.reader_token}":
                return 403, {"kind": "Status", "reason": "Forbidden"}
            if path == "/keys" and "application/jwk-set+json" not in headers.get("Accept", ""):
                return 406, {}
        return self.get(path)

    def authorize(self, page: str, claims: dict[str, Any]) -> dict[str, str]:
        """The person signs in on the page of the provider: what is added to the address that they come back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(page).query).items()}
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked | {"claims": claims}
        return {"state": asked["state"], "code": code, "iss": self.name or self.url}

    def _redeem(self, form: dict[str, str]) -> tuple[int, Any]:
        """As the standards say: a code once, by the client and for the address that it was made for, and only with the
        verifier of its challenge."""
        asked = self.codes.pop(form["code"], None)
        if asked is None or any(form.get(name) != asked[name] for name in ("client_id", "redirect_uri")):
            return 400, {"error": "invalid_grant"}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.token({"nonce": asked["nonce"]} | asked["claims"])}

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/.well-known/openid-configuration":
            ends = {
                "authorization_endpoint": "/authorize",
                "device_authorization_endpoint": "/device",
                "token_endpoint": "/token",
                "jwks_uri": "/keys",
                "revocation_endpoint": "/revoke",
            }
            return 200, {"issuer": self.name or self.url} | {name: self.url + end for name, end in ends.items()}
        if path == "/keys":
            return 200, {"keys": [key.as_dict(private=False) for key in self.keys]}
        return 404, {}

    def post(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        if path == "/device":
            return 200, {
                "device_code": "device-1",
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.url}/activate",
                "expires_in": 300,
                "interval": self.interval_s,
            }
        if path == "/revoke":
            self.refresh_tokens.discard(form["token"])
            return 200, {}
        if form["grant_type"] == "authorization_code":
            return self._redeem(form)
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self.refresh_tokens.discard(form["refresh_token"])
        elif self.claims is None:
            return 400, {"error": "authorization_pending"}
        refresh = secrets.token_hex(8)
        self.refresh_tokens.add(refresh)
        return 200, {"id_token": self.token(self.claims or {}), "refresh_token": refresh}
