"""A TCP proxy in front of a PostgreSQL server, for faults of the network: replies that are lost, links that hang or
break, and a connection that is cut exactly when it commits.

Knows sockets, and of PostgreSQL's protocol how a COMMIT looks. One thread for each direction of a connection.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

_PARSED = re.compile(rb"P....([^\0]*)\0COMMIT\0", re.DOTALL)
_AT_ONCE = 64 << 10


class Mode(Enum):
    PASS = "pass"
    LOSE_REPLIES = "lose_replies"  # what the database says does not arrive
    HANG = "hang"  # nothing moves in either direction; new connections are accepted and hang as well
    REFUSE = "refuse"  # connections are closed


class DatabaseProxy:
    """``address`` is that of a database on a Unix socket; ``url`` leads there through the proxy. ``mode`` may
    change at any time, and holds for all connections."""

    def __init__(self, folder: str, address: str, port: int = 5432) -> None:
        self._target = f"{folder}/.s.PGSQL.{port}"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = address.split("?")[0].replace("@/", f"@127.0.0.1:{self._listener.getsockname()[1]}/")
        self.mode = Mode.PASS
        self.cuts = 0  # connections that were cut at a COMMIT
        self._cut: bool | None = None  # before it arrives, or after; None: not at all
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, mode: Mode) -> None:
        self.mode = mode
        if mode is Mode.HANG:
            self._passing.clear()
        if mode is Mode.REFUSE:
            self.break_all()

    def heal(self, *, late: bool = False) -> None:
        """Connections that were tampered with are closed, as by a router that has forgotten them; or, ``late``, what
        was held up arrives after all."""
        was, self.mode = self.mode, Mode.PASS
        if was is not Mode.PASS and not late:
            self.break_all()
        self._passing.set()

    def cut_next_commit(self, *, before: bool) -> None:
        """The connection ends when it commits: before the word arrives, or after, so that no answer comes back."""
        self._cut = before

    def break_all(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
        for each in found:
            _close(each)

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()
        self.heal()
        self.break_all()

    # ---- in threads ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.mode is Mode.REFUSE:
                _close(near)
                continue
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._target)
            except OSError:
                _close(near)
                far.close()
                continue
            with self._lock:
                self._open |= {near, far}
            commits = _Commits()
            for source, target, is_reply in ((near, far, False), (far, near, True)):
                work = self._carry(source, target, is_reply, commits)
                threading.Thread(target=work, daemon=True).start()

    def _carry(
        self, source: socket.socket, target: socket.socket, is_reply: bool, commits: _Commits
    ) -> Callable[[], None]:
        def run() -> None:
            try:
                while data := source.recv(_AT_ONCE):
                    self._passing.wait()
                    if is_reply and self.mode is Mode.LOSE_REPLIES:
                        continue
                    if not is_reply and commits.is_in(data) and (before := self._cut) is not None:
                        self._cut, self.cuts = None, self.cuts + 1
                        if not before:
                            target.sendall(data)
                        return
                    target.sendall(data)
            except OSError:
                pass
            finally:
                for each in (source, target):
                    self._open.discard(each)
                    _close(each)

        return run


class _Commits:
    """Whether a client commits: in words, or by the name of a statement that it has prepared."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()

    def is_in(self, data: bytes) -> bool:
        self._names |= {name for name in _PARSED.findall(data) if name}
        return b"COMMIT\0" in data or any(b"\0" + name + b"\0" in data for name in self._names)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
