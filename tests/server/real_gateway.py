"""A real gateway with its server's end in this process, in front of a fleet; agents that send what the test sets."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.agent.gateway_connection import GatewayConnection
from corral.agent.join_servers import JoinServers
from corral.core.cluster.topology import NodeSpec
from corral.remote import frames
from corral.remote.backend import RemoteBackend
from corral.remote.messages import Hello, LeaseAnswer, No, Renewal
from corral.remote.settings import RemoteSettings
from corral.runtime.base import Report
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.link import Setup
from corral.server.gateway.listener import bound_for_agents
from corral.server.gateway.process import boot_ms
from corral.server.gateway.roster import NodeCredential, Roster, write_roster

EPOCH = 3
SETTINGS = RemoteSettings(lease_ms=4_000, heartbeat_ms=500, margin_ms=1_000)
FAR_MS = 600_000


def token_of(node: str) -> str:
    return f"corral_{node}_secret-of-{node}"


def credential_of(node: str) -> NodeCredential:
    return NodeCredential(node, hashlib.sha256(f"secret-of-{node}".encode()).hexdigest())


class GatewayHarness:
    """``lends_ms``: for how long the right to extend leases is lent, again and again."""

    def __init__(
        self, folder: Path, nodes: int = 2, settings: RemoteSettings = SETTINGS, gone: tuple[str, ...] = (),
        **setup: object,
    ) -> None:  # fmt: skip
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.told: list[Report] = []
        self.refused: list[tuple[str, str]] = []
        self.until_ms: Callable[[], int] = lambda: boot_ms() + FAR_MS
        self.credentials: dict[str, tuple[NodeCredential, ...]] = {node: (credential_of(node),) for node in self.nodes}
        write_roster(folder, Roster(self.credentials, gone))
        self.fleet = RemoteBackend(folder, settings)
        for node in self.nodes:
            self.fleet.expect(NodeSpec(node), node in gone)
        self.fleet.open(self.told.append, EPOCH)
        place = bound_for_agents("127.0.0.1", 0, 0, folder)
        began = Setup(epoch=EPOCH, settings=settings, **setup)  # type: ignore[arg-type]
        self.gateway = AgentGateway(folder, place, began, lambda: self.until_ms())
        self.port = self.gateway.port
        self._open: list[Callable[[], None]] = []

    def open(self, fleet: object = None, farewell_ms: int = 0) -> None:
        self.fleet.keeper = self.gateway
        refuse = lambda node, what: self.refused.append((node, what))  # noqa: E731
        self.gateway.open(fleet or self.fleet, dict(self.credentials), farewell_ms, refuse)  # type: ignore[arg-type]

    def line(self, node: str = "n1") -> GatewayConnection:
        line = GatewayConnection(
            node, JoinServers(("http://127.0.0.1:1",), ""), token_of(node), (f"127.0.0.1:{self.port}",)
        )
        line.answer_s = 20.0
        self._open.append(line.hang_up)
        return line

    def raw(self) -> RawAgent:
        raw = RawAgent(self.port)
        self._open.append(raw.close)
        return raw

    def __enter__(self) -> GatewayHarness:
        return self

    def __exit__(self, *_: object) -> None:
        for close in self._open:
            close()
        self.gateway.close()


class RawAgent:
    """Bytes, and what comes back."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self._assembly, self._found = frames.Assembly(frames.TO_AGENTS), list[tuple[bytes, bytes]]()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, kind: bytes, body: object) -> None:
        self.send(b"".join(frames.pieces(kind, msgspec.json.encode(body))))

    def hello(self, node: str = "n1", token: str | None = None) -> tuple[bytes, bytes]:
        self.say(frames.HELLO, Hello(node, token_of(node) if token is None else token))
        return self.next()

    def renew(self, **asked: int) -> LeaseAnswer:
        self.say(frames.RENEW, Renewal(**{"seq": 1, "epoch": EPOCH, **asked}))
        while (found := self.next())[0] != frames.LEASE:
            assert found[0] != b"", "it was put out"
        return msgspec.json.decode(found[1], type=LeaseAnswer)

    def next(self) -> tuple[bytes, bytes]:
        """The next message; (b"", b""): the connection is over."""
        while not self._found:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return b"", b""
            self._found += self._assembly.feed(data)
        return self._found.pop(0)

    def why_out(self) -> str:
        """Read until it is disconnected; the code it got, if any."""
        code = ""
        while (found := self.next())[0]:
            if found[0] == frames.REFUSED:
                code = msgspec.json.decode(found[1], type=No).code
        return code

    def close(self) -> None:
        self.socket.close()


def until(is_so: Callable[[], bool], patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)
