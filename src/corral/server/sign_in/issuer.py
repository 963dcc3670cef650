"""One OpenID Connect issuer over HTTP: its addresses, its keys as they change, and requests to it.

Calls block, each for a bounded time, and may be made in several threads. Knows what the standard says about addresses
and keys. Knows nothing about users, flows or requests to this server. What the issuer answers is bounded and checked.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from joserfc.jwk import Key

from corral.io.http import fetch
from corral.server.sign_in.id_tokens import BadIdToken, Claims, UnknownKey, import_keys, verified

_ANSWER_BYTES_MAX = 1 << 20
_TOKEN_BYTES_MAX = 16 << 10
_TIMEOUT_S = 5.0
_KEPT_S = 3_600.0  # addresses and keys, before they are read again
_AGAIN_S = 10.0  # between two readings of keys because of a key that is not known
_SAFE_URL = re.compile(r"(https://[^\s/?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)(/\S*)?")


class IssuerAway(Exception):
    """The issuer cannot be reached, or its answer cannot be used."""


class IssuerRefused(Exception):
    """The issuer answered with an error of OAuth 2.0. ``code``: its word for it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text or code)
        self.code = code


class Issuer:
    """``discovery``: where its addresses are read, if not below its own URL. ``token_file``: a token to show there and
    for the keys, read at every request because it is renewed. ``now_s``: a clock that only runs forward."""

    def __init__(
        self,
        url: str,
        ca: str = "",
        now_s: Callable[[], float] = time.monotonic,
        discovery: str = "",
        token_file: str = "",
    ) -> None:
        self.url = url
        self._discovery = (discovery or url).rstrip("/") + "/.well-known/openid-configuration"
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._now_s = now_s
        self._lock = threading.Lock()
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, list[Key]] | None = None

    def endpoint(self, name: str) -> str:
        """An address of the issuer by its name in the discovery document; empty: it has none."""
        url = self._discovered().get(name, "")
        if url and (not isinstance(url, str) or not _SAFE_URL.fullmatch(url)):
            raise IssuerAway(f"{name} of {self.url} is not a URL with https")
        return str(url)

    def claims(self, token: str, audience: str, wall_s: float, nonce: str = "") -> Claims:
        """The claims of a token of this issuer. Keys are read again if none is known that fits: issuers change them."""
        try:
            return verified(token, self._known_keys(), self.url, audience, wall_s, nonce)
        except UnknownKey:
            keys = self._known_keys(older_than_s=_AGAIN_S)
            return verified(token, keys, self.url, audience, wall_s, nonce)

    def post(self, endpoint: str, form: Mapping[str, str]) -> dict[str, Any]:
        """Send a form to an address of the issuer, and return its answer."""
        url = self.endpoint(endpoint)
        if not url:
            raise IssuerAway(f"{self.url} has no {endpoint}")
        head = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        status, answer = self._fetch("POST", url, head, urlencode(form).encode())
        if status >= 500:
            raise IssuerAway(f"{self.url} answered with status {status}")
        if status >= 400 or "error" in answer:
            code, text = answer.get("error"), answer.get("error_description")
            raise IssuerRefused(str(code or "invalid_request")[:60], str(text or "")[:200])
        return answer

    def _discovered(self) -> dict[str, Any]:
        with self._lock:
            known = self._metadata
        if known is not None and self._now_s() - known[0] < _KEPT_S:
            return known[1]
        url = self._discovery
        try:
            status, found = self._read(url)
            if status in (401, 403):
                raise IssuerAway(f"{url} needs a token: set token_file of this issuer (status {status})")
            if status != 200 or found.get("issuer") != self.url:
                stated = str(found.get("issuer", ""))[:200]
                raise IssuerAway(f"{url} does not describe the issuer {self.url}: status {status}, issuer {stated!r}")
        except IssuerAway:
            if known is not None:  # what was true an hour ago is better than nothing
                return known[1]
            raise
        with self._lock:
            self._metadata = (self._now_s(), found)
        return found

    def _known_keys(self, older_than_s: float = _KEPT_S) -> list[Key]:
        with self._lock:
            known = self._keys
        if known is not None and self._now_s() - known[0] < older_than_s:
            return known[1]
        try:
            status, found = self._read(self.endpoint("jwks_uri"))
            if status != 200:
                raise IssuerAway(f"{self.url} does not give its keys: status {status}")
            keys = import_keys(found)
        except (IssuerAway, BadIdToken) as wrong:
            if known is not None:
                return known[1]
            raise IssuerAway(str(wrong)) from None
        with self._lock:
            self._keys = (self._now_s(), keys)
        return keys

    def _read(self, url: str) -> tuple[int, dict[str, Any]]:
        """A public document of the issuer. An API server of Kubernetes has its keys as a key set only, not as JSON."""
        headers = {"Accept": "application/json, application/jwk-set+json"}
        if self._token_file:
            try:
                with open(self._token_file, "rb") as file:
                    headers["Authorization"] = "Bearer " + file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
            except (OSError, ValueError) as wrong:
                raise IssuerAway(f"the token for {self.url} cannot be read: {wrong}. Check token_file") from None
        return self._fetch("GET", url, headers)

    def _fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        if not _SAFE_URL.fullmatch(url):
            raise IssuerAway(f"{url!r} of {self.url} is not a URL with https")
        try:
            head, data = fetch(
                method, url, headers, body, timeout_s=_TIMEOUT_S, tls=self._tls, size_max=_ANSWER_BYTES_MAX
            )
            found = json.loads(data) if data else {}
        except (OSError, ValueError, RecursionError) as wrong:
            raise IssuerAway(f"{self.url} cannot be reached, or its answer cannot be read: {wrong}") from None
        if not isinstance(found, dict):
            raise IssuerAway(f"{self.url} gave an answer that cannot be used")
        return head.status, found
