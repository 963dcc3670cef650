"""The connection to the gateway: one for everything, on which no long message delays a renewal.

The address of the gateway is remembered across restarts; the servers are asked for it (`JoinServers`) only when it
does not answer. Only a server's refusal is final: a gateway may not know yet that the node has joined. Knows sockets
and messages.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from corral.agent.join_servers import JoinServers, is_tls
from corral.agent.server_connection import NoAnswer, Refused
from corral.remote import frames
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    Hello,
    LeaseAnswer,
    LogDelivery,
    LogReceipt,
    No,
    Renewal,
)

T = TypeVar("T")
GatewayAddress = tuple[str, int, bool]  # host, port, whether by TLS

ANSWER_S = 4.0  # for a renewal: leaves time to resend a lost one within the lease
PATIENCE_S = 60.0  # for all other requests: the server may be busy, and the lease does not depend on them
_LOOK_MS = 500
_REPLIES = {frames.ANSWER: frames.REPORT, frames.DESIRED: frames.ASK, frames.RECEIPT: frames.LOGS}
_log = logging.getLogger(__name__)
_lease, _no = msgspec.json.Decoder(LeaseAnswer), msgspec.json.Decoder(No)


class GatewayConnection:
    """``gateways``: addresses as HOST:PORT, if they differ from what the servers say (behind a tunnel).
    ``known``: the last address: host, port, whether by TLS. ``keep``: called when that changes."""

    def __init__(
        self,
        node: str,
        servers: JoinServers,
        token: str,
        gateways: tuple[str, ...] = (),
        known: GatewayAddress | None = None,
        keep: Callable[[GatewayAddress], None] = lambda _: None,
    ) -> None:
        self.answer_s = ANSWER_S
        self._node = node
        self.use(token)
        self._servers, self._gateways = servers, gateways
        self._known, self._keep = known, keep
        self._wire: _Wire | None = None
        self._granted: Callable[[LeaseAnswer], None] = _ignore
        self._connecting = threading.Lock()
        self._turns = {kind: threading.Lock() for kind in (frames.RENEW, frames.REPORT, frames.ASK, frames.LOGS)}

    def use(self, token: str) -> None:
        """Use this token from the next connection on."""
        self._hello = msgspec.json.encode(Hello(self._node, token))

    def renew(self, asked: Renewal) -> LeaseAnswer:
        return self._asked(frames.RENEW, asked, LeaseAnswer, self.answer_s)

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        self._granted = tell

    def report(self, report: AgentReport) -> AgentAnswer:
        return self._asked(frames.REPORT, report, AgentAnswer, PATIENCE_S)

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """No answer within the time is normal here: the connection stays open."""
        return self._asked(frames.ASK, ask, DesiredAnswer | None, ask.wait_ms / 1000, is_patient=True)  # type: ignore[arg-type]

    def logs(self, delivery: LogDelivery) -> LogReceipt:
        return self._asked(frames.LOGS, delivery, LogReceipt, PATIENCE_S)

    def hang_up(self) -> None:
        if (wire := self._wire) is not None:
            wire.close()

    def __enter__(self) -> GatewayConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def _asked(self, kind: bytes, body: Any, shape: type[T], timeout_s: float, is_patient: bool = False) -> T:
        message = msgspec.json.encode(body)
        if len(message) > frames.FROM_AGENTS[kind]:
            raise NoAnswer(f"a message of {len(message)} bytes is longer than the gateway accepts")
        with self._turns[kind]:
            wire = self._connected()
            answer = wire.ask(kind, message, timeout_s)
        if isinstance(answer, bytes):
            try:
                return msgspec.json.decode(answer, type=shape)
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                raise NoAnswer(f"cannot read the answer: {wrong}") from None
        if isinstance(answer, No) and answer.status in (403, 404, 422):
            raise Refused(answer.status, answer.code, answer.why)
        if answer is _NOTHING and is_patient:
            return None  # type: ignore[return-value]
        if answer is _NOTHING:
            wire.close()
            raise NoAnswer(f"the server did not answer within {timeout_s:g} s")
        raise NoAnswer("the server is busy" if answer is _BUSY else f"the connection is closed: {answer}")

    # --- finding the gateway ------------------------------------------------------------------------------------------

    def _connected(self) -> _Wire:
        with self._connecting:
            if self._wire is None or self._wire.is_over:
                self._wire = self._connect()
            return self._wire

    def _connect(self) -> _Wire:
        """Try the last known address, then the one that the servers name. Only a server's refusal is final."""
        if self._gateways:
            return self._at_stated()
        if self._known is not None and (self._known[2] or not is_tls(self._servers.at)):
            with suppress(NoAnswer):
                return self._at(*self._known)
        known = self._ask_servers()
        wire = self._at(*known)
        if known != self._known:
            self._known = known
            self._keep(known)
        return wire

    def _ask_servers(self) -> GatewayAddress:
        host, endpoint = self._servers.endpoint()
        if is_tls(self._servers.at) and not endpoint.tls:
            raise NoAnswer(
                f"{self._servers.at} names port {endpoint.port} without TLS for agents; refusing to connect unencrypted"
            )
        return host, endpoint.port, endpoint.tls

    def _at_stated(self) -> _Wire:
        tls = is_tls(self._servers.at)
        for stated in self._gateways[:-1]:
            with suppress(NoAnswer):
                return self._at(*_split(stated), tls)
        try:
            return self._at(*_split(self._gateways[-1]), tls)
        except NoAnswer:
            self._servers.endpoint()  # raises `Refused` if the node is not known there any more
            raise

    def _at(self, host: str, port: int, tls: bool) -> _Wire:
        try:
            sock = socket.create_connection((host, port), self.answer_s)
        except OSError as lost:
            raise NoAnswer(f"{host}:{port} does not answer: {lost}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(self.answer_s)
            if tls:
                assert self._servers.tls is not None
                sock = self._servers.tls.wrap_socket(sock, server_hostname=host)
        except OSError as lost:
            sock.close()
            raise NoAnswer(f"TLS with {host}:{port} failed: {lost}") from None
        wire = _Wire(sock, lambda answer: self._granted(answer))
        no = wire.ask(frames.HELLO, self._hello, self.answer_s)
        if not isinstance(no, bytes):
            wire.close()
            raise NoAnswer(f"{host}:{port} refused the connection: {no}")
        _log.info("connected to %s:%d", host, port)
        return wire


class _Outcome:
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


_NOTHING = _Outcome("no answer in time")
_BUSY = _Outcome("busy")
_OVER = _Outcome("closed")
_Answer = bytes | No | _Outcome


class _Wire:
    """One connection. One thread at a time sends a request of each kind; one thread reads."""

    def __init__(self, sock: socket.socket, granted: Callable[[LeaseAnswer], None]) -> None:
        self.is_over = False
        self._sock, self._granted = sock, granted
        self._why: _Answer = _OVER
        self._slots: dict[bytes, SimpleQueue[_Answer]] = {}
        self._urgent = threading.Event()
        self._io = threading.Lock()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._assembly = frames.Assembly(frames.TO_AGENTS)
        threading.Thread(target=self._read, name="agent-line", daemon=True).start()

    def ask(self, kind: bytes, body: bytes, timeout_s: float) -> _Answer:
        slot = self._slots[kind] = SimpleQueue()
        if self.is_over:
            return self._why
        try:
            self._send(kind, body)
            return slot.get(timeout=timeout_s)
        except Empty:
            return _NOTHING
        except OSError:
            self.close()
            return self._why
        finally:
            self._slots.pop(kind, None)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # the reading thread notices, and closes it
        self.is_over = True

    def _send(self, kind: bytes, body: bytes) -> None:
        """A renewal is sent between two pieces of a long message."""
        is_urgent = kind == frames.RENEW
        if is_urgent:
            self._urgent.set()
        for piece in frames.pieces(kind, body):
            while not is_urgent and self._urgent.is_set() and not self.is_over:
                threading.Event().wait(0.001)
            with self._io:
                if is_urgent:
                    self._urgent.clear()
                self._sock.sendall(piece)

    def _read(self) -> None:
        try:
            while not self.is_over:
                data = self._received()
                if data is None:
                    continue
                if not data:
                    break
                for kind, body in self._assembly.feed(data):
                    self._take(kind, body)
        except (OSError, ValueError, frames.BadFrame, msgspec.DecodeError) as lost:
            _log.info("connection closed: %s", lost)
        finally:
            self.is_over = True
            with suppress(OSError):
                self._sock.close()
            for slot in list(self._slots.values()):
                slot.put(self._why)

    def _received(self) -> bytes | None:
        """None: nothing yet. Does not wait while it holds the lock: TLS reads and writes through one object."""
        has_more = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        if not has_more and not self._readable.poll(_LOOK_MS):
            return None
        if not isinstance(self._sock, ssl.SSLSocket):
            return self._sock.recv(1 << 16)
        with self._io:
            self._sock.settimeout(0)
            try:
                return self._sock.recv(1 << 16)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            finally:
                self._sock.settimeout(ANSWER_S)

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == frames.LEASE:
            answer, slot = _lease.decode(body), self._slots.get(frames.RENEW)
            if slot is None:
                self._granted(answer)
            else:
                slot.put(body)
        elif kind == frames.REFUSED:
            self._why = _no.decode(body)
            self.close()
        else:
            asked = frames.HELLO if kind == frames.WELCOME else body if kind == frames.BUSY else _REPLIES[kind]
            slot = self._slots.get(asked)
            if slot is not None:
                slot.put(_BUSY if kind == frames.BUSY else body)


def _split(stated: str) -> tuple[str, int]:
    host, _, port = stated.rpartition(":")
    return host.strip("[]"), int(port)


def _ignore(answer: LeaseAnswer) -> None:
    del answer
