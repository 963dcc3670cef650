"""The server's end of the gateway: start it, delegate the right to extend leases, answer forwarded messages.

Runs in threads of its own, so that only changes of the journal wait for the event loop: one thread receives, one sends,
one delegates, two store logs. A gateway that dies is restarted. Knows the backend only as `AgentHandler`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import msgspec
import structlog
from msgspec import structs

from corral.remote import frames
from corral.remote.border import BadReport, NotYours
from corral.remote.leases import LeaseStatus
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    LogDelivery,
    LogReceipt,
    No,
)
from corral.runtime.base import StaleEpoch
from corral.server.gateway import link
from corral.server.gateway.roster import NodeCredential, Roster, read_roster, write_roster

log = structlog.get_logger(__name__)

DELEGATE_S = 0.5
_AGAIN_S = 0.2
_CLOSE_S = 5.0
_BAD = (BadReport, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = msgspec.json.Encoder().encode
_report, _ask = msgspec.json.Decoder(AgentReport), msgspec.json.Decoder(DesiredAsk)
_delivery = msgspec.json.Decoder(LogDelivery)


class AgentHandler(Protocol):
    """Handles messages of agents. Called from any thread."""

    def report(self, said: AgentReport) -> AgentAnswer: ...
    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None: ...
    def when_desired(self, node: str, wake: Callable[[], None]) -> None: ...
    def take_logs(self, delivery: LogDelivery) -> LogReceipt: ...
    def give_up(self, node: str, term: int) -> None: ...
    def lease_statuses(self) -> dict[str, LeaseStatus]: ...


class AgentGateway:
    """``authority_ms``: how long this server certainly leads, by the boot clock. ``place``: the listening socket for
    agents. ``setup``: settings of the gateway; the roster and the authority are filled in here."""

    def __init__(self, folder: Path, place: socket.socket, setup: link.Setup, authority_ms: Callable[[], int]) -> None:
        self.port: int = place.getsockname()[1]
        self.has_tls = bool(setup.tls_certificate)
        self.count: Callable[[link.Figures], None] = _count_nothing
        self._folder = folder
        self._place = place
        self._setup = setup
        self._authority_ms = authority_ms
        self._fleet: AgentHandler | None = None
        self._refuse: Callable[[str, str], None] = _refuse_nobody
        self._farewell_ms = 0
        self._roster = read_roster(folder)
        self._gone: dict[str, None] = dict.fromkeys(self._roster.gone)
        self._credentials = dict(self._roster.credentials)
        self._is_roster_old = False
        self._asks: dict[str, tuple[int, DesiredAsk]] = {}
        self._awake: set[str] = set()
        self._out: SimpleQueue[bytes | str | None] = SimpleQueue()
        self._over, self._told = threading.Event(), threading.Event()
        self._lock = threading.Lock()  # guards the current socket and the first message on it
        self._logs = ThreadPoolExecutor(2, thread_name_prefix="gateway-logs")
        self._process, self._socket = self._start()
        self._threads = [
            threading.Thread(target=work, name=f"gateway-{name}", daemon=True)
            for name, work in (("in", self._receive), ("out", self._send_all), ("lend", self._delegate))
        ]
        for thread in self._threads:
            thread.start()

    # --- for the server -----------------------------------------------------------------------------------------------

    def open(
        self,
        fleet: AgentHandler,
        credentials: dict[str, tuple[NodeCredential, ...]],
        farewell_ms: int,
        refuse: Callable[[str, str], None],
    ) -> None:
        """The state is loaded: answer agents from here on. ``refuse`` is called when a node acts for another."""
        with self._lock:
            self._fleet = fleet
            self._refuse = refuse
            self._farewell_ms = farewell_ms
            self._credentials = credentials
            lease_statuses = fleet.lease_statuses()
            self._gone = {node: None for node, status in lease_statuses.items() if status.is_gone}
            self._is_roster_old = True
            self._out.put(self._members(lease_statuses))

    def admit(self, node: str, status: LeaseStatus) -> None:
        """The node is new, was declared lost, or has returned."""
        if status.is_gone:
            self._gone[node] = None
        else:
            self._gone.pop(node, None)
        self._is_roster_old = True
        self._out.put(link.message(link.ADMIT, node, _encode(status)))

    def drop(self, node: str) -> None:
        self._gone.pop(node, None)
        self._asks.pop(node, None)
        self._is_roster_old = True
        self._out.put(link.message(link.DROP, node))

    def set_credentials(self, node: str, credentials: tuple[NodeCredential, ...]) -> None:
        """Set the credentials of a node. Connections that used another one are closed."""
        if credentials:
            self._credentials[node] = credentials
        else:
            self._credentials.pop(node, None)
        self._is_roster_old = True
        self._out.put(link.message(link.CREDENTIALS, node, _encode(credentials)))

    def say_farewell(self, lease_ms: int, patience_s: float = 5.0) -> bool:
        """Give the last lease of this server to all connected agents; no lease is extended after it."""
        self._fleet = None
        self._out.put(link.message(link.FAREWELL, body=_encode(lease_ms)))
        return self._told.wait(patience_s)

    def close(self) -> None:
        self._over.set()
        self._out.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the gateway ends when its link closes
        for thread in self._threads:
            thread.join(_CLOSE_S)
        self._logs.shutdown(wait=False)
        self._socket.close()
        self._place.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_CLOSE_S)

    # --- its process --------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        roster = Roster(dict(self._credentials), tuple(self._gone))
        setup = structs.replace(self._setup, roster=roster, authority_ms=self._authority_ms())
        mine, its = socket.socketpair()
        told = os.memfd_create("gateway-setup")
        try:
            with open(told, "wb", closefd=False) as file:
                file.write(_encode(setup))
            fds = (self._place.fileno(), its.fileno(), told)
            process = subprocess.Popen(
                [sys.executable, "-m", "corral.server.gateway.process", *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
            os.close(told)
        log.info("gateway", port=self.port, pid=process.pid)
        return process, mine

    def _start_again(self) -> None:
        """Restart the gateway. It does not know the leases of the earlier one: every node has a full lease from now."""
        log.error("gateway_lost", exit_code=self._process.wait())
        time.sleep(_AGAIN_S)
        with self._lock:
            while not self._out.empty():  # messages for the earlier one
                self._out.get()
            self._awake.clear()
            self._socket.close()
            self._process, self._socket = self._start()
            if self._fleet is not None:
                self._out.put(self._members(self._fleet.lease_statuses()))

    def _members(self, lease_statuses: dict[str, LeaseStatus]) -> bytes:
        members = link.Members(lease_statuses, dict(self._credentials), self._farewell_ms)
        return link.message(link.MEMBERS, body=_encode(members))

    # --- threads ------------------------------------------------------------------------------------------------------

    def _delegate(self) -> None:
        """Extend the authority of the gateway, independently of the event loop, which may be busy."""
        delegated_ms = 0
        while not self._over.is_set():
            until_ms = self._authority_ms()
            if until_ms != delegated_ms and not self._told.is_set():
                delegated_ms = until_ms
                self._out.put(link.message(link.DELEGATE, body=_encode(until_ms)))
            if self._is_roster_old:
                self._is_roster_old = False
                self._keep_roster()
            self._over.wait(DELEGATE_S)

    def _keep_roster(self) -> None:
        try:
            write_roster(self._folder, Roster(dict(self._credentials), tuple(self._gone)))
        except OSError as wrong:
            log.error("roster_not_saved", error=str(wrong))
        except RuntimeError:  # it has changed meanwhile
            self._is_roster_old = True

    def _send_all(self) -> None:
        while (said := self._out.get()) is not None:
            try:
                if isinstance(said, str):
                    said = self._pushed(said)
                self._socket.sendall(said)
            except OSError:
                if self._over.is_set():
                    return
                time.sleep(_AGAIN_S)  # it is being restarted, and gets everything again
            except Exception:
                log.exception("gateway_send_failed")

    def _receive(self) -> None:
        while not self._over.is_set():
            parting = link.Parting()
            while data := self._received():
                for said in parting.feed(data):
                    self._take(said)
            if not self._over.is_set():
                try:
                    self._start_again()
                except OSError as wrong:
                    log.error("gateway_not_started", error=str(wrong))
                    time.sleep(1.0)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(1 << 18)
        except OSError:
            return b""

    # --- messages of agents -------------------------------------------------------------------------------------------

    def _take(self, said: link.Message) -> None:
        try:
            match said.kind:
                case link.SAID:
                    self._take_message(said)
                case link.GONE if self._fleet is not None:
                    self._fleet.give_up(said.node, msgspec.json.decode(said.body, type=int))
                case link.LEFT:
                    if self._asks.get(said.node, (0,))[0] == said.connection:
                        self._asks.pop(said.node, None)
                case link.TOLD:
                    self._told.set()
                case link.FIGURES:
                    self.count(msgspec.json.decode(said.body, type=link.Figures))
        except Exception:  # a bad message of one agent must not stop the others
            log.exception("agent_message_failed", node=said.node)
            if said.kind == link.SAID:
                self._tell(said, frames.BUSY, said.about)

    def _take_message(self, said: link.Message) -> None:
        fleet = self._fleet
        if fleet is None:
            self._tell(said, frames.BUSY, said.about)
        elif said.about == frames.LOGS:
            self._logs.submit(self._keep_logs, fleet, said)
        else:
            try:
                if said.about == frames.REPORT:
                    self._answer_report(fleet, said)
                else:
                    self._take_ask(fleet, said)
            except _BAD as wrong:
                self._tell(said, frames.REFUSED, _encode(No(422, "bad_report", str(wrong)[:500])))

    def _answer_report(self, fleet: AgentHandler, said: link.Message) -> None:
        report = _report.decode(said.body)
        if not self._is_own_node(said, report.node):
            return
        try:
            answer = fleet.report(report)
        except StaleEpoch as stale:
            log.error("newer_server", node=said.node, epoch=stale.highest)
            self._tell(said, frames.REFUSED, _encode(No(503, "not_leader", str(stale))))
            return
        except NotYours as wrong:
            self._refuse(said.node, str(wrong))
            why = f"{wrong}: check whether the agent's data folder is a copy of another node's"
            self._tell(said, frames.REFUSED, _encode(No(403, "not_yours", why)))
            return
        if answer.refused:
            self._refuse(said.node, answer.refused)
        self._tell(said, frames.ANSWER, _encode(answer))

    def _take_ask(self, fleet: AgentHandler, said: link.Message) -> None:
        """A request for the desired state; it is answered when there is something new."""
        ask = _ask.decode(said.body)
        if self._is_own_node(said, ask.node):
            self._asks[said.node] = (said.connection, ask)
            fleet.when_desired(said.node, lambda: self._wake(said.node))
            self._wake(said.node)

    def _wake(self, node: str) -> None:
        if node not in self._awake:
            self._awake.add(node)
            self._out.put(node)

    def _pushed(self, node: str) -> bytes:
        """The desired state for a node that asked, as a message; called in the sending thread."""
        self._awake.discard(node)
        asked, fleet = self._asks.get(node), self._fleet
        try:
            answer = None if asked is None or fleet is None else fleet.desired(asked[1])
        except BadReport as wrong:
            assert asked is not None
            no = No(422, "bad_report", str(wrong)[:500])
            return link.message(link.TELL, node, _encode(no), asked[0], frames.REFUSED)
        if asked is None or answer is None:
            return b""
        self._asks.pop(node, None)
        return link.message(link.TELL, node, _encode(answer), asked[0], frames.DESIRED)

    def _keep_logs(self, fleet: AgentHandler, said: link.Message) -> None:
        """Store logs; may be slow."""
        try:
            delivery = _delivery.decode(said.body)
            if self._is_own_node(said, delivery.node):
                self._tell(said, frames.RECEIPT, _encode(fleet.take_logs(delivery)))
        except _BAD as wrong:
            self._tell(said, frames.REFUSED, _encode(No(422, "bad_report", str(wrong)[:500])))
        except Exception:
            log.exception("logs_not_saved", node=said.node)
            self._tell(said, frames.BUSY, said.about)

    def _is_own_node(self, said: link.Message, node: str) -> bool:
        """Whether an agent reports for its own node. If not, the message is refused, and that is recorded."""
        if node == said.node:
            return True
        self._refuse(said.node, f"node {said.node} sent a message for node {node[:100]!r}")
        why = f"this is the connection of node {said.node}; it cannot send messages for {node[:100]!r}"
        self._tell(said, frames.REFUSED, _encode(No(403, "not_your_node", why)))
        return False

    def _tell(self, said: link.Message, kind: bytes, body: bytes) -> None:
        self._out.put(link.message(link.TELL, said.node, body, said.connection, kind))


def _count_nothing(figures: link.Figures) -> None:
    """Used until metrics are connected."""
    del figures


def _refuse_nobody(node: str, what: str) -> None:
    """Used before `open`."""
    del node, what
