"""The gateway as a process: it keeps the connections of agents and their leases, and forwards messages to the server.

It renews leases by itself, with the authority that the server delegates, so no lease waits for a long request, plan or
start of the server. Other messages are forwarded, reports first; if the queue is full, the agent sends them again. It
handles no input of users. It ends with the server.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
from collections import Counter, OrderedDict, deque
from typing import Any

import msgspec
import uvloop

from corral.remote import frames
from corral.remote.leases import Leases, LeaseStatus
from corral.remote.messages import Hello, LeaseAnswer, No, Renewal
from corral.server.gateway import link
from corral.server.gateway.agent_connection import AgentConnection
from corral.server.gateway.roster import NodeCredential, proved

SWEEP_S = 0.25
FIGURES_S = 2.0
_ROOM_BYTES = 64 << 20  # messages queued for the server
_HELD_BYTES = 256 << 20  # incomplete messages
_LINK_BUFFER_BYTES = 256 << 10
_LAST_WORDS_S = 0.3
_SILENT_S = 60.0  # or four leases: a connection without messages for this time is closed
_OWN_FILES = 64
_STARTING = No(503, "not_ready", "the server is starting; try again")
#: The order in which messages of agents are forwarded.
_RANKS = {frames.REPORT: 0, frames.ASK: 1, frames.LOGS: 2}
_encode = msgspec.json.Encoder().encode


def boot_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Gateway:
    """Implements the ``ConnectionOwner`` of connections, and the gateway's end of the link."""

    def __init__(self, setup: link.Setup) -> None:
        self._setup = setup
        self._leases = Leases(setup.settings, setup.epoch, frozenset(setup.roster.gone))
        self._leases.delegate(setup.authority_ms)
        self._credentials = dict(setup.roster.credentials)
        self._unknown: OrderedDict[int, AgentConnection] = OrderedDict()
        self._of_address: Counter[str] = Counter()
        self._by_node: dict[str, AgentConnection] = {}
        self._numbers = secrets.randbits(31)  # random, so that an answer for an earlier gateway matches no connection
        self._in_flight: set[tuple[str, bytes]] = set()
        self._held = 0
        self._queues: tuple[deque[bytes], ...] = tuple(deque() for _ in range(len(_RANKS) + 1))
        self._queued = 0
        self._link: Any = None
        self._is_link_full = self._has_ended = False
        self._renewals = self._refused = self._busy = 0

    # --- new connections ----------------------------------------------------------------------------------------------

    async def accept(self, place: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections here rather than in asyncio, so that they are counted before the TLS handshake."""
        loop, coming = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            try:
                sock, address = await loop.sock_accept(place)
            except OSError:  # no file descriptors are left, or the client has disconnected
                await asyncio.sleep(0.05)
                continue
            task = loop.create_task(self._admit(sock, str(address[0]), tls))
            coming.add(task)
            task.add_done_callback(coming.discard)

    async def _admit(self, sock: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        self._numbers += 1
        connection = AgentConnection(self, self._numbers & 0xFFFFFFFF, address)
        self._unknown[connection.number] = connection
        self._of_address[address] += 1
        self._make_room(address)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._setup.hello_s,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            self._refused += 1
            self._forget_unknown(connection)
            sock.close()

    def _make_room(self, address: str) -> None:
        """Close the oldest unidentified connection if there are too many: agents identify themselves immediately."""
        setup, full = self._setup, No(503, "busy", "too many connections; try again")
        if len(self._unknown) > setup.unknown_max:
            self._drop_unknown(next(iter(self._unknown.values())), full)
        if self._of_address[address] > setup.unknown_of_address_max:
            self._drop_unknown(next(each for each in self._unknown.values() if each.address == address), full)

    def _drop_unknown(self, connection: AgentConnection, why: No) -> None:
        self._refused += 1
        self._forget_unknown(connection)
        connection.disconnect(why)

    def _forget_unknown(self, connection: AgentConnection) -> None:
        if self._unknown.pop(connection.number, None) is not None:
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def now_s(self) -> float:
        return time.monotonic()

    def greet(self, connection: AgentConnection, hello: Hello) -> No | None:
        """Authenticate an agent. Before the state is loaded none is refused for good: the roster may be outdated."""
        known = proved(self._credentials.get(hello.node, ()), hello.token, _wall_ms())
        if known is None:
            self._refused += 1
            if self._leases.is_early:
                return _STARTING
            return No(401, "bad_token", f"the credential is not valid for node {hello.node[:100]!r}, or has expired")
        if len(self._by_node) >= self._setup.connections_max and hello.node not in self._by_node:
            self._refused += 1
            return No(503, "busy", f"{self._setup.connections_max} agents are connected, which is the limit")
        self._forget_unknown(connection)
        earlier = self._by_node.pop(hello.node, None)
        connection.node, connection.credential = hello.node, known
        self._by_node[hello.node] = connection
        if earlier is not None:
            earlier.disconnect(No(503, "replaced", "the agent has connected again"))
        return None

    def renew(self, connection: AgentConnection, asked: Renewal) -> LeaseAnswer | No:
        if asked.epoch > self._setup.epoch:
            return No(503, "not_leader", f"this server has epoch {self._setup.epoch}; the agent knows {asked.epoch}")
        self._renewals += 1
        return self._leases.renew(connection.node, asked, boot_ms())

    def hold(self, more: int) -> bool:
        self._held += more
        return more < 0 or self._held <= _HELD_BYTES

    def is_over(self, connection: AgentConnection) -> None:
        self._forget_unknown(connection)
        if connection.node and self._by_node.get(connection.node) is connection:
            del self._by_node[connection.node]
            self._send(link.message(link.LEFT, connection.node, connection=connection.number))

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def forward(self, connection: AgentConnection, kind: bytes, body: bytes) -> None:
        """Forward a message: at most one report and one delivery of logs at a time for each node."""
        if kind in connection.in_flight:
            raise frames.BadFrame(f"a message of kind {kind!r} has not been answered yet")
        about = (connection.node, kind)
        if self._leases.is_early or about in self._in_flight or self._queued + len(body) > _ROOM_BYTES:
            self._busy += 1
            connection.tell(frames.BUSY, kind)
            return
        if kind != frames.ASK:
            connection.in_flight.add(kind)
            self._in_flight.add(about)
        self._send(link.message(link.SAID, connection.node, body, connection.number, kind), 1 + _RANKS[kind])

    def _send(self, data: bytes, rank: int = 0) -> None:
        self._queues[rank].append(data)
        self._queued += len(data)
        self._pump()

    def _pump(self) -> None:
        for queue in self._queues:
            while queue and not self._is_link_full:
                data = queue.popleft()
                self._queued -= len(data)
                self._link.write(data)

    # --- the link -----------------------------------------------------------------------------------------------------

    def link_made(self, transport: Any) -> None:
        self._link = transport
        transport.set_write_buffer_limits(high=_LINK_BUFFER_BYTES)

    def link_full(self, is_full: bool) -> None:
        self._is_link_full = is_full
        if not is_full:
            self._pump()

    def take(self, said: link.Message) -> None:
        now_ms = boot_ms()
        match said.kind:
            case link.TELL:
                self._tell(said)
            case link.DELEGATE if not self._has_ended:
                self._leases.delegate(msgspec.json.decode(said.body, type=int))
            case link.ADMIT:
                self._leases.admit(said.node, msgspec.json.decode(said.body, type=LeaseStatus), now_ms)
            case link.DROP:
                self._leases.drop(said.node)
            case link.MEMBERS:
                members = msgspec.json.decode(said.body, type=link.Members)
                self._leases.begin(members.standings, now_ms, members.farewell_ms)
                self._credentials = members.credentials
                for connection in list(self._by_node.values()):
                    self._check_credential(connection)
            case link.CREDENTIALS:
                self._credentials[said.node] = msgspec.json.decode(said.body, type=tuple[NodeCredential, ...])
                if said.node in self._by_node:
                    self._check_credential(self._by_node[said.node])
            case link.FAREWELL:
                self._say_farewell(msgspec.json.decode(said.body, type=int), now_ms)
                asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._end_leases)

    def _tell(self, said: link.Message) -> None:
        kind = {frames.ANSWER: frames.REPORT, frames.RECEIPT: frames.LOGS, frames.BUSY: said.body}.get(said.about)
        if kind is not None:
            self._in_flight.discard((said.node, kind))
        connection = self._by_node.get(said.node)
        if connection is None or connection.number != said.connection:
            return
        if kind is not None:
            connection.in_flight.discard(kind)
        if said.about == frames.REFUSED:
            self._in_flight -= {(said.node, each) for each in connection.in_flight}
            self._disconnect(connection, msgspec.json.decode(said.body, type=No))
        else:
            connection.tell(said.about, said.body)

    def _check_credential(self, connection: AgentConnection) -> None:
        """Close a connection whose credential was revoked or has expired."""
        mine = connection.credential
        is_over = mine is None or (mine.expires_ms is not None and mine.expires_ms <= _wall_ms())
        if is_over or mine not in self._credentials.get(connection.node, ()):
            self._disconnect(connection, No(401, "bad_token", "the credential of this node was revoked or has expired"))

    def _disconnect(self, connection: AgentConnection, no: No) -> None:
        self._refused += 1
        connection.disconnect(no)

    def _say_farewell(self, lease_ms: int, now_ms: int) -> None:
        """Give the last lease, counted from the last renewal of each agent, the only time that the agent knows.
        Renewals that are under way get the same for a short time; after that no lease is extended."""
        self._leases.say_farewell(lease_ms)
        for node, connection in self._by_node.items():
            if connection.last is not None:
                connection.tell_lease(self._leases.renew(node, connection.last, now_ms))

    def _end_leases(self) -> None:
        self._has_ended = True
        self._leases.delegate(0)
        self._send(link.message(link.TOLD))

    # --- time ---------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        while True:
            for node, term in self._leases.sweep(boot_ms()):
                self._send(link.message(link.GONE, node, _encode(term)))
            now_s = self.now_s()
            for connection in list(self._unknown.values()):
                if now_s - connection.began_s > self._setup.hello_s:
                    self._drop_unknown(connection, No(408, "too_slow", "the agent did not identify itself in time"))
            silent_s = max(_SILENT_S, 4 * self._leases.lease_ms / 1000)
            for connection in list(self._by_node.values()):
                if now_s - connection.heard_s > silent_s:
                    self._disconnect(connection, No(408, "silent", f"no message for {silent_s:g} s"))
                else:
                    self._check_credential(connection)
            await asyncio.sleep(SWEEP_S)

    async def count(self) -> None:
        while True:
            figures = link.Figures(len(self._by_node), self._renewals, self._refused, self._busy)
            self._send(link.message(link.FIGURES, body=_encode(figures)))
            await asyncio.sleep(FIGURES_S)


class _LinkProtocol(asyncio.Protocol):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._parting = link.Parting()

    def connection_made(self, transport: Any) -> None:
        self._gateway.link_made(transport)

    def data_received(self, data: bytes) -> None:
        for said in self._parting.feed(data):
            self._gateway.take(said)

    def pause_writing(self) -> None:
        self._gateway.link_full(True)

    def resume_writing(self) -> None:
        self._gateway.link_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has ended, and with it the authority to extend leases. Free the port for its successor."""
        del exc
        os._exit(0)


def main(place_fd: int, link_fd: int, setup_fd: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with the server, and not before
        signal.signal(number, signal.SIG_IGN)
    with open(setup_fd, "rb") as file:
        file.seek(0)
        setup = msgspec.json.decode(file.read(), type=link.Setup)
    files = setup.connections_max + setup.unknown_max + _OWN_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    place, server = socket.socket(fileno=place_fd), socket.socket(fileno=link_fd)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(setup, place, server))


async def _run(setup: link.Setup, place: socket.socket, server: socket.socket) -> None:
    tls = None
    if setup.tls_certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(setup.tls_certificate, setup.tls_key or None)
    gateway = Gateway(setup)
    server.setblocking(False)
    place.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: _LinkProtocol(gateway), sock=server)
    gc.freeze()
    async with asyncio.TaskGroup() as group:
        for work in (gateway.accept(place, tls), gateway.look(), gateway.count()):
            group.create_task(work)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
