"""HTTP requests of an agent to the servers: join the cluster, and find the gateway of the leader.

Knows addresses and a credential. It stays with the server that answers, and follows a redirect to another.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from corral.agent.server_connection import NoAnswer, Refused
from corral.io.http import ResponseHead, fetch
from corral.remote.messages import EndpointAnswer, JoinAnswer

T = TypeVar("T")

ENDPOINT_S = 4.0
_JOIN_S = 20.0
_REDIRECTS = (301, 302, 307, 308)
_NOT_LEADER = "not_leader"  # the error code of a server that is not the leader any more


class JoinServers:
    """``urls``: the addresses of all servers."""

    def __init__(self, urls: tuple[str, ...], token: str, cafile: str = "") -> None:
        self._urls, self._token = urls, token
        self.at = urls[0]
        self.tls = ssl.create_default_context(cafile=cafile or None) if any(map(is_tls, urls)) else None
        self._lock = threading.Lock()

    def join(self, body: Any, answer: type[T]) -> T:
        with self._lock:
            return self._asked("POST", "join", msgspec.json.encode(body), answer, _JOIN_S)

    def renew(self) -> JoinAnswer:
        """Get a new credential for this node."""
        with self._lock:
            return self._asked("POST", "credential", b"", JoinAnswer, _JOIN_S)

    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def use(self, token: str) -> None:
        """Use this token from now on."""
        self._token = token

    def endpoint(self) -> tuple[str, EndpointAnswer]:
        """The host of the leader as seen from here, and the address of its gateway. Tries every server once."""
        with self._lock:
            for n, _ in enumerate(self._urls, start=1):
                try:
                    answer = self._asked("GET", "endpoint", None, EndpointAnswer, ENDPOINT_S)
                except NoAnswer:
                    if n == len(self._urls):
                        raise
                else:
                    return urlsplit(self.at).hostname or "", answer
        raise NoAnswer("no server address is known")

    def _asked(self, method: str, what: str, body: bytes | None, answer: type[T], timeout_s: float) -> T:
        head, text = self._exchange(method, what, body, timeout_s)
        if head.status in _REDIRECTS and head.headers.get("location"):  # not executed: send it to the other server
            self._follow(head.headers["location"])
            head, text = self._exchange(method, what, body, timeout_s)
        if head.status in _REDIRECTS:
            raise NoAnswer(f"{self.at} redirects again; giving up for now")
        if head.status >= 500:
            self._use_next()
            raise NoAnswer(f"the server answered with status {head.status}")
        if head.status >= 300:
            refused = _refusal(head.status, text)
            if refused.code == _NOT_LEADER:
                self._use_next()
                raise NoAnswer(f"the server is not the leader: {refused}")
            raise refused
        try:
            return msgspec.json.decode(text or b"null", type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise NoAnswer(f"cannot read the answer: {wrong}") from None

    def _exchange(self, method: str, what: str, body: bytes | None, timeout_s: float) -> tuple[ResponseHead, bytes]:
        headers = self.authorization()
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        try:
            return fetch(
                method, f"{self.at.rstrip('/')}/v1/agent/{what}", headers, body, timeout_s=timeout_s, tls=self.tls
            )
        except OSError as lost:
            at = self.at
            self._use_next()
            raise NoAnswer(f"{at} does not answer: {str(lost) or type(lost).__name__}") from None

    def _use_next(self) -> None:
        """Continue with the next server."""
        at = self._urls.index(self.at) if self.at in self._urls else -1
        self.at = self._urls[(at + 1) % len(self._urls)]

    def _follow(self, location: str) -> None:
        parts = urlsplit(location)
        if parts.scheme and (not is_tls(self.at) or parts.scheme == "https"):
            self.at = f"{parts.scheme}://{parts.netloc}"
        else:
            self._use_next()


def is_tls(url: str) -> bool:
    return url.startswith("https://")


def _refusal(status: int, text: bytes) -> Refused:
    try:
        problem = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Refused(status, "not_corral", "the answer does not come from Corral", "check the address")
    return Refused(status, str(problem.get("code", "")), str(problem.get("detail", "")), str(problem.get("hint", "")))
