"""Connects seats on different machines for job steps: supervisors here ask for seats elsewhere, and the server asks for
seats here. Every connection goes through the server's API, in a thread of its own, and never over that of the lease.

It copies bytes: which step they belong to, and what is lost when a connection breaks, is known at both ends.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from corral.agent.join_servers import JoinServers
from corral.io.duplex import Duplex, DuplexRefused
from corral.io.http import BadAnswer
from corral.remote.messages import StreamAsk
from corral.runtime.local.state_dir import name_of, short
from corral.runtime.steps import step_frames as frames
from corral.runtime.steps import unix_sockets as sockets
from corral.runtime.steps.seat_host import RELAY

_log = logging.getLogger(__name__)
_CONNECT_S = 5.0
_THREADS_MAX = 2_000


class StepRelay:
    """``run``: the run directory of the backend."""

    def __init__(self, run: str, servers: JoinServers) -> None:
        self._run, self._servers = run, servers
        self._is_over = False
        self._place: socket.socket | None = None
        self._room = threading.Semaphore(_THREADS_MAX)

    def begin(self) -> None:
        os.makedirs(self._run, mode=0o700, exist_ok=True)
        self._place = sockets.listen(f"{self._run}/{RELAY}", 0o600)
        self._place.setblocking(True)
        threading.Thread(target=self._accept, name="step-relay", daemon=True).start()

    def stop(self) -> None:
        self._is_over = True
        if self._place is not None:
            with suppress(OSError):
                self._place.shutdown(socket.SHUT_RDWR)
            self._place.close()

    def answer(self, asks: Sequence[StreamAsk]) -> None:
        """The server wants to reach tasks on this machine."""
        for ask in asks:
            self._in_thread(lambda ask=ask: self._serve(ask))  # type: ignore[misc]

    def _in_thread(self, work: Callable[[], None]) -> None:
        if not self._room.acquire(blocking=False):
            return

        def run() -> None:
            try:
                work()
            except (OSError, BadAnswer, DuplexRefused, frames.BadStepFrame) as lost:
                _log.info("a connection of a job step ended: %s", lost)
            finally:
                self._room.release()

        threading.Thread(target=run, name="step-stream", daemon=True).start()

    def _serve(self, ask: StreamAsk) -> None:
        with sockets.connect(f"{self._run}/steps/{short(name_of(ask.key))}", _CONNECT_S) as own:
            there = self._dial(f"streams/{ask.ticket}", {})
            try:
                own.sendall(frames.frame(frames.RELAYED))
                there.splice(own)
            finally:
                there.close()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                assert self._place is not None
                own, _ = self._place.accept()
            except OSError:
                return
            self._in_thread(lambda own=own: self._pass_on(own))  # type: ignore[misc]

    def _pass_on(self, own: socket.socket) -> None:
        """A supervisor asks for a seat of its gang. What its client sends after that goes there."""
        with own:
            own.settimeout(_CONNECT_S)
            reader, rest = frames.Reader(), b""
            asked: dict[str, Any] | None = None
            while asked is None:
                more = own.recv(1 << 16)
                if not more:
                    return
                for kind, body in reader.feed(more):
                    if asked is None and kind == frames.OPEN:
                        asked = frames.parse(body)
                    else:
                        rest += frames.frame(kind, body)
            rest += reader.rest
            there = self._dial("streams", {"task": str(asked.get("task", "")), "seat": str(asked.get("seat", ""))})
            try:
                there.put(rest)
                there.splice(own, frames.frame(frames.QUIT))
            finally:
                there.close()

    def _dial(self, what: str, query: dict[str, str]) -> Duplex:
        servers = self._servers
        text = f"?{urlencode(query)}" if query else ""
        url = f"{servers.at.rstrip('/')}/v1/agent/{what}{text}"
        return Duplex(url, servers.authorization(), servers.tls, _CONNECT_S * 2)
