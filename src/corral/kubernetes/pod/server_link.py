"""The connection of a pod to the server: results go up, orders come down, a line of JSON each.

TLS with the certificate that the order names; the pod shows a token of its own. A connection that breaks is made again;
everything that is known is sent again then. The task does not depend on it.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading

from corral.io.backoff import Backoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CONNECT_S = 5.0
_LINE_MAX = 1 << 16


class Link:
    """``settings``: ``address``, ``token``, ``certificate``. ``take`` gets orders, in a thread of its own."""

    def __init__(self, settings: dict[str, str], pod: str, take: Callable[[dict[str, Any]], None]) -> None:
        self._settings = settings
        self._pod = pod
        self._take = take
        self._lock = threading.Lock()
        self._socket: ssl.SSLSocket | None = None
        self._known: dict[str, Any] = {}
        self._confirmed = threading.Event()
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def tell(self, known: dict[str, Any]) -> None:
        """Replace what the server is to know."""
        with self._lock:
            self._known = known
            to = self._socket
            if to is not None:
                self._send(to, {"known": known})

    def finish(self, patience_s: float) -> None:
        """Wait until the server has confirmed the end, but not long."""
        if self._socket is not None:
            self._confirmed.wait(patience_s)
        self._stop.set()

    def _run(self) -> None:
        backoff = Backoff(0.2, 15.0)
        while not self._stop.is_set():
            try:
                with self._connected() as to:
                    backoff.succeeded()
                    self._talk(to)
            except (OSError, ValueError):
                pass
            finally:
                with self._lock:
                    self._socket = None
            self._stop.wait(backoff.failed())

    def _connected(self) -> ssl.SSLSocket:
        host, _, port = self._settings["address"].rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # this one certificate is accepted, whatever the server is called
        context.load_verify_locations(cadata=self._settings["certificate"])
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
        try:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            to = context.wrap_socket(plain, server_hostname="corral")
        except BaseException:
            plain.close()
            raise
        to.settimeout(None)
        return to

    def _talk(self, to: ssl.SSLSocket) -> None:
        with self._lock:
            hello = {"pod": self._pod, "token": self._settings["token"], "known": self._known}
            self._send(to, hello)
            self._socket = to
        with to.makefile("rb") as lines:
            while line := lines.readline(_LINE_MAX):
                message = json.loads(line)
                if message.get("confirmed"):
                    self._confirmed.set()
                else:
                    self._take(message)

    def _send(self, to: ssl.SSLSocket, message: dict[str, Any]) -> None:
        try:
            to.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            to.close()
