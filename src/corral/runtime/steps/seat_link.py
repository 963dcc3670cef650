"""A connection to one seat that survives breaks: made again, it continues at the byte where it broke.

``Finder`` gets connections from the supervisor of the own seat; other ways to reach a seat offer the same method.
"""

from __future__ import annotations

import os
import socket
import time

from corral.runtime.steps import step_frames as frames
from corral.runtime.steps import unix_sockets as sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class SeatFinder(Protocol):
        def find(self, seat: int) -> socket.socket:
            """A connection to the supervisor of a seat. Raises `NotReachable`."""
            ...


_ANSWER_S = 30.0
_RETRY_S, _RETRY_S_MAX = 0.01, 1.0
_ORDERS_MAX = 4096


class NotReachable(Exception):
    """The seat cannot be reached now; later it may."""


class StepRefused(Exception):
    """A request was refused: why, and the exit code for that."""

    def __init__(self, why: str, code: int = 1, is_lost: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.code = code
        self.is_lost = is_lost


class Finder:
    """Asks the supervisor of the own seat, as a process of the gang."""

    def __init__(self, path: str, token: str) -> None:
        self._path, self._token = path, token

    def find(self, seat: int) -> socket.socket:
        try:
            with sockets.connect(self._path, _ANSWER_S) as own:
                own.sendall(frames.message(frames.OPEN, {"token": self._token, "seat": seat}))
                body, fd = sockets.receive_descriptor(own)
                if fd >= 0:
                    return socket.socket(fileno=fd)
                for kind, said in frames.Reader().feed(body):
                    why = str(frames.parse(said).get("why", ""))
                    if kind == frames.FAILED:
                        raise StepRefused(why)
                    raise NotReachable(why)
        except OSError as fault:
            raise NotReachable(f"the supervisor of this task does not answer: {fault}") from None
        raise NotReachable(f"seat {seat} does not answer")


def find_patiently(finder: SeatFinder, seat: int, patience_s: float) -> socket.socket:
    """Seats of a gang start at slightly different times, and a connection may be interrupted."""
    until, pause_s = time.monotonic() + patience_s, _RETRY_S
    while True:
        try:
            return finder.find(seat)
        except NotReachable as lost:
            if time.monotonic() + pause_s > until:
                raise StepRefused(str(lost), is_lost=True) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _RETRY_S_MAX)


def ask(connection: socket.socket, kind: bytes, said: Any, on_wait: Any = None) -> dict[str, Any]:
    """Send a request and wait for its answer. Raises `StepRefused`, OSError if the connection breaks."""
    connection.settimeout(None)
    connection.sendall(frames.message(kind, said))
    reader = frames.Reader()
    while True:
        more = connection.recv(1 << 16)
        if not more:
            raise ConnectionResetError("the connection was closed")
        for answer, body in reader.feed(more):
            told = frames.parse(body)
            if answer == frames.DONE:
                return told
            if answer == frames.FAILED:
                raise StepRefused(str(told.get("why", "")), int(told.get("code", 1)))
            if answer == frames.WAIT and on_wait is not None:
                on_wait(str(told.get("why", "")))


class SeatLink:
    """The processes of a step on one seat, as the client sees them."""

    def __init__(self, seat: int, step: str, start: dict[str, Any], count: int) -> None:
        self.seat = seat
        self.step = step
        self.codes: list[int | None] = [None] * count
        self.faults: dict[int, str] = {}
        self.is_started = False
        self.is_over = False
        self.broken_at = 0.0
        self.retry_at = 0.0
        self.sock: socket.socket | None = None
        self.taken = [0] * count
        self._start = start
        self._received: dict[tuple[int, int], int] = {}
        self._acknowledged: dict[tuple[int, int], int] = {}
        self._reader = frames.Reader()
        self.out = bytearray()
        self._orders = bytearray()  # signals for processes that cannot be reached now

    def connect(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._reader = frames.Reader()
        self.out.clear()
        if self.is_started:
            received = {f"{number}.{stream}": offset for (number, stream), offset in self._received.items()}
            self.send(frames.message(frames.ATTACH, {"step": self.step, "received": received}))
        else:
            self.send(frames.message(frames.START, {"step": self.step, **self._start}))
        self.send(bytes(self._orders))
        self._orders.clear()

    def signal(self, number: int) -> None:
        order = frames.message(frames.SIGNAL, {"signal": number})
        if self.sock is not None:
            self.send(order)
        elif len(self._orders) < _ORDERS_MAX:
            self._orders += order

    def send(self, said: bytes) -> None:
        """Queue a frame; without a connection it is dropped, except what `connect` repeats."""
        if self.sock is not None:
            self.out += said
            self.flush()

    def flush(self) -> None:
        try:
            while self.out and self.sock is not None:
                count = self.sock.send(self.out[: 1 << 16])
                del self.out[:count]
        except BlockingIOError:
            pass
        except OSError:
            self.lose()

    def lose(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock, self.broken_at = None, time.monotonic()
            self.retry_at = self.broken_at

    def receive(self) -> list[tuple[int, int, bytes]]:
        """New output: number of the process, stream, bytes. Raises `StepRefused`."""
        assert self.sock is not None
        try:
            more = self.sock.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            more = b""
        if not more:
            self.lose()
            return []
        found = []
        for kind, body in self._reader.feed(more):
            if kind == frames.OUTPUT:
                number, stream, offset, data = frames.position(body)
                known = self._received.get((number, stream), 0)
                if offset <= known < offset + len(data):
                    found.append((number, stream, data[known - offset :]))
                    self._received[number, stream] = offset + len(data)
            elif kind == frames.EXIT:
                number, code = frames.STATUS.unpack(body)
                self.codes[number] = code
                self.is_over = None not in self.codes
            elif kind == frames.TAKEN:
                number, _, offset, _ = frames.position(body)
                self.taken[number] = max(self.taken[number], offset)
            elif kind == frames.DONE:
                self.is_started = True
                for number, offset in frames.parse(body).get("taken", {}).items():
                    self.taken[int(number)] = max(self.taken[int(number)], offset)
            elif kind == frames.FAILED:
                self._on_failure(frames.parse(body))
        return found

    def _on_failure(self, said: dict[str, Any]) -> None:
        number = said.get("process")
        if number is None:
            raise StepRefused(str(said.get("why", "")), int(said.get("code", 1)), bool(said.get("is_lost")))
        self.faults[int(number)] = str(said.get("why", ""))

    def acknowledge(self) -> None:
        """Say what has been received and passed on."""
        for (number, stream), offset in self._received.items():
            if self._acknowledged.get((number, stream), 0) < offset and self.sock is not None:
                self._acknowledged[number, stream] = offset
                self.send(frames.data(frames.RECEIVED, number, stream, offset))

    def close(self) -> None:
        if self.sock is not None:
            try:
                self.sock.setblocking(True)
                self.sock.settimeout(1)
                self.sock.sendall(bytes(self.out) + frames.frame(frames.QUIT))
            except OSError:
                pass
            self.sock.close()
            self.sock = None
        self.out.clear()


def own_finder() -> Finder | None:
    """None: this process is not part of a job."""
    path, token = os.environ.get(frames.SOCKET_VARIABLE, ""), os.environ.get(frames.TOKEN_VARIABLE, "")
    return Finder(path, token) if path and token else None
