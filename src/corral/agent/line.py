"""How an agent speaks to the server: questions go out, answers come back; nothing ever comes in by itself.

`Line` is the seam; `HttpLine` is plain HTTP or HTTPS of the standard library over one connection for each kind of
question, kept open. Knows addresses and a credential, and nothing of what is said.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from corral.backends.fleet.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    LogDelivery,
    LogReceipt,
)

T = TypeVar("T")

ANSWER_S = 4.0  # for a report: a lost one is sent again well within a lease
LOGS_S = 20.0
_POLL_EXTRA_S = 5.0
_REDIRECTS = (301, 302, 307, 308)
_NOT_LEADER = "not_leader"  # the code by which a server says that another has taken over


class NoAnswer(Exception):
    """Nobody knows whether it arrived."""


class Refused(Exception):
    """The server has said no. ``code`` is stable."""

    def __init__(self, status: int, code: str, why: str, hint: str = "") -> None:
        super().__init__(f"{why} ({code}, {status})" + (f"; {hint}" if hint else ""))
        self.status, self.code, self.hint = status, code, hint


class _GoneStale(NoAnswer):
    """The other side had closed a connection that was kept."""


class Line(Protocol):
    answer_s: float  # so long a report waits for its answer

    def report(self, said: AgentReport) -> AgentAnswer: ...

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """Returns when there is something, or nothing for long."""
        ...

    def logs(self, delivery: LogDelivery) -> LogReceipt: ...

    def hang_up(self) -> None:
        """Let go whoever waits; the next question begins anew."""
        ...


class HttpLine:
    """``urls``: of all servers; the one that answers is kept to, and one that names another is followed."""

    def __init__(self, urls: tuple[str, ...], token: str, answer_s: float = ANSWER_S, cafile: str = "") -> None:
        self._urls, self._token, self.answer_s = urls, token, answer_s
        self._at = urls[0]
        self._tls = ssl.create_default_context(cafile=cafile or None) if any(map(_is_tls, urls)) else None
        self._open: dict[str, http.client.HTTPConnection] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def report(self, said: AgentReport) -> AgentAnswer:
        return self._asked("report", said, AgentAnswer, self.answer_s)

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        return self._asked("desired", ask, DesiredAnswer | None, ask.wait_ms / 1000 + _POLL_EXTRA_S)  # type: ignore[arg-type]

    def logs(self, delivery: LogDelivery) -> LogReceipt:
        return self._asked("logs", delivery, LogReceipt, LOGS_S)

    def join(self, body: Any, answer: type[T]) -> T:
        return self._asked("join", body, answer, 20.0)

    def hang_up(self) -> None:
        with self._lock:
            kept, self._open = self._open, {}
            for what, connection in kept.items():
                if what not in self._busy:
                    connection.close()
                elif connection.sock is not None:  # whoever waits on it closes it
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> HttpLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def _asked(self, what: str, body: Any, answer: type[T], timeout_s: float) -> T:
        """One question on the connection of its kind."""
        said = msgspec.json.encode(body)
        try:
            status, head, text = self._exchange(what, said, timeout_s)
        except _GoneStale:  # it was kept for too long; everything may be said twice
            status, head, text = self._exchange(what, said, timeout_s)
        if status in _REDIRECTS and head.get("location"):  # nothing was done there: it is asked again elsewhere
            self._go_to(head["location"])
            status, head, text = self._exchange(what, said, timeout_s)
        if status in _REDIRECTS:
            raise NoAnswer(f"the server has sent us on to {self._at}")
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

    def _exchange(self, what: str, body: bytes, timeout_s: float) -> tuple[int, dict[str, str], bytes]:
        connection = self._connection(what, timeout_s)
        was_open = connection.sock is not None
        head = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"/v1/agent/{what}", body, head)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as lost:
            was_kept = self._put_back(what, connection, True)
            if was_open and was_kept and isinstance(lost, http.client.RemoteDisconnected | ConnectionError):
                raise _GoneStale from None
            self._go_on()
            raise NoAnswer(f"{self._at} does not answer: {str(lost) or type(lost).__name__}") from None
        self._put_back(what, connection, answer.will_close)
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def _connection(self, what: str, timeout_s: float) -> http.client.HTTPConnection:
        with self._lock:
            kept = self._open.get(what)
            if kept is None:
                place = urlsplit(self._at)
                host, port = place.hostname or "", place.port
                if place.scheme == "https":
                    kept = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
                else:
                    kept = http.client.HTTPConnection(host, port, timeout=timeout_s)
                self._open[what] = kept
            self._busy.add(what)
            kept.timeout = timeout_s
            if kept.sock is not None:
                kept.sock.settimeout(timeout_s)
            return kept

    def _put_back(self, what: str, connection: http.client.HTTPConnection, is_over: bool) -> bool:
        """Whether it had not been hung up meanwhile."""
        with self._lock:
            self._busy.discard(what)
            is_kept = self._open.get(what) is connection
            if is_kept and is_over:
                del self._open[what]
        if is_over or not is_kept:
            connection.close()
        return is_kept

    def _go_on(self) -> None:
        """To the next server there is."""
        if len(self._urls) > 1:
            at = self._urls.index(self._at) if self._at in self._urls else -1
            self._at = self._urls[(at + 1) % len(self._urls)]
            self.hang_up()

    def _go_to(self, location: str) -> None:
        place = urlsplit(location)
        if place.scheme and (not _is_tls(self._at) or place.scheme == "https"):
            self._at = f"{place.scheme}://{place.netloc}"
            self.hang_up()
        else:
            self._go_on()


def _is_tls(url: str) -> bool:
    return url.startswith("https://")


def _refusal(status: int, text: bytes) -> Refused:
    try:
        told = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Refused(status, "not_corral", "the answer does not come from Corral", "check the address")
    return Refused(status, str(told.get("code", "")), str(told.get("detail", "")), str(told.get("hint", "")))
