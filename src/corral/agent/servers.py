"""Questions to the servers over HTTP: may this machine join, and where do agents speak to the one that leads.

Plain HTTP or HTTPS of the standard library. Knows addresses and a credential. The server that answers is kept to, and
one that names another is followed.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from corral.agent.line import NoAnswer, Refused
from corral.backends.fleet.messages import EndpointAnswer, JoinAnswer

T = TypeVar("T")

ENDPOINT_S = 4.0
_JOIN_S = 20.0
_REDIRECTS = (301, 302, 307, 308)
_NOT_LEADER = "not_leader"  # the code by which a server says that another has taken over


class Servers:
    """``urls``: of all servers."""

    def __init__(self, urls: tuple[str, ...], token: str, cafile: str = "") -> None:
        self._urls, self._token = urls, token
        self.at = urls[0]
        self.tls = ssl.create_default_context(cafile=cafile or None) if any(map(is_tls, urls)) else None
        self._lock = threading.Lock()

    def join(self, body: Any, answer: type[T]) -> T:
        with self._lock:
            return self._asked("POST", "join", msgspec.json.encode(body), answer, _JOIN_S)

    def renew(self) -> JoinAnswer:
        """A new credential for this node."""
        with self._lock:
            return self._asked("POST", "credential", b"", JoinAnswer, _JOIN_S)

    def use(self, token: str) -> None:
        """From here on this is what proves who asks."""
        self._token = token

    def endpoint(self) -> tuple[str, EndpointAnswer]:
        """The host that leads, as it is reached from here, and where agents speak to it. Tries every server once."""
        with self._lock:
            for n, _ in enumerate(self._urls, start=1):
                try:
                    answer = self._asked("GET", "endpoint", None, EndpointAnswer, ENDPOINT_S)
                except NoAnswer:
                    if n == len(self._urls):
                        raise
                else:
                    return urlsplit(self.at).hostname or "", answer
        raise NoAnswer("there is no server to ask")

    def _asked(self, method: str, what: str, body: bytes | None, answer: type[T], timeout_s: float) -> T:
        status, head, text = self._exchange(method, what, body, timeout_s)
        if status in _REDIRECTS and head.get("location"):  # nothing was done there: it is asked again elsewhere
            self._go_to(head["location"])
            status, head, text = self._exchange(method, what, body, timeout_s)
        if status in _REDIRECTS:
            raise NoAnswer(f"the server has sent us on to {self.at}")
        if status >= 500:
            self._go_on()
            raise NoAnswer(f"the server answers with status {status}")
        if status >= 300:
            refused = _refusal(status, text)
            if refused.code == _NOT_LEADER:
                self._go_on()
                raise NoAnswer(f"the server that was asked does not lead: {refused}")
            raise refused
        try:
            return msgspec.json.decode(text or b"null", type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise NoAnswer(f"the answer cannot be read: {wrong}") from None

    def _exchange(
        self, method: str, what: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self._connection(timeout_s)
        head = {"Authorization": f"Bearer {self._token}", "Connection": "close"}
        head |= {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, f"/v1/agent/{what}", body, head)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        except (OSError, http.client.HTTPException) as lost:
            at = self.at
            self._go_on()
            raise NoAnswer(f"{at} does not answer: {str(lost) or type(lost).__name__}") from None
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        place = urlsplit(self.at)
        host, port = place.hostname or "", place.port
        if place.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.tls)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _go_on(self) -> None:
        """To the next server there is."""
        at = self._urls.index(self.at) if self.at in self._urls else -1
        self.at = self._urls[(at + 1) % len(self._urls)]

    def _go_to(self, location: str) -> None:
        place = urlsplit(location)
        if place.scheme and (not is_tls(self.at) or place.scheme == "https"):
            self.at = f"{place.scheme}://{place.netloc}"
        else:
            self._go_on()


def is_tls(url: str) -> bool:
    return url.startswith("https://")


def _refusal(status: int, text: bytes) -> Refused:
    try:
        told = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Refused(status, "not_corral", "the answer does not come from Corral", "check the address")
    return Refused(status, str(told.get("code", "")), str(told.get("detail", "")), str(told.get("hint", "")))
