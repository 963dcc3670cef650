"""A door that agents can knock at: it lets every pilot join, answers its reports, and remembers who was there.

Speaks on loopback as a server and its gateway would, and is far from being either: nothing is ever wanted of an agent.
"""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from corral.core.cluster.topology import NodeSpec
from corral.remote import frames
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    EndpointAnswer,
    JoinAnswer,
    LeaseAnswer,
    LogReceipt,
    Renewal,
)


class FakeServer:
    def __init__(self) -> None:
        self.joined: list[tuple[str, str]] = []  # (node, token it came with)
        self.specs: dict[str, NodeSpec] = {}
        self.leaving: set[str] = set()
        self.heard_s: dict[str, float] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._gateway = _Gateway(("127.0.0.1", 0), _spoken(self))
        threading.Thread(target=self._gateway.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def is_here(self, node: str) -> bool:
        """Whether the agent of this node spoke a while ago: where there is no news, every fourth heartbeat."""
        return time.monotonic() - self.heard_s.get(node, -1e9) < 3.5

    def close(self) -> None:
        """Who is still speaking is not answered, in silence."""
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._server.shutdown()
        self._server.server_close()
        self._gateway.shutdown()
        self._gateway.server_close()

    def join(self, body: dict[str, Any], token: str) -> JoinAnswer:
        self.joined.append((body["node"], token))
        return JoinAnswer(body["node"], f"credential-of-{body['node']}")

    def endpoint(self) -> EndpointAnswer:
        return EndpointAnswer(self._gateway.server_address[1])

    def answered(self, kind: bytes, body: bytes) -> tuple[bytes, object] | None:
        """What an agent gets; None: nothing."""
        match kind:
            case frames.HELLO:
                return frames.WELCOME, {}
            case frames.RENEW:
                asked = msgspec.json.decode(body, type=Renewal)
                return frames.LEASE, LeaseAnswer(seq=asked.seq, epoch=1, term=0, lease_ms=8_000, heartbeat_ms=500)
            case frames.REPORT:
                return frames.ANSWER, self.report(msgspec.json.decode(body, type=AgentReport))
            case frames.LOGS:
                return frames.RECEIPT, LogReceipt(tuple(0 for _ in msgspec.json.decode(body).get("chunks", ())))
        return None

    def report(self, said: AgentReport) -> AgentAnswer:
        self.heard_s[said.node] = time.monotonic()
        if said.spec is not None:
            self.specs[said.node] = said.spec
        if said.leaves_in_ms is not None:
            self.leaving.add(said.node)
        return AgentAnswer(
            epoch=1, term=0, version=said.version, session=said.session,
            wants_full=not said.is_full and said.node not in self.specs, is_leaving=said.leaves_in_ms is not None,
        )  # fmt: skip


class _Gateway(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """In silence."""


def _spoken(fake_server: FakeServer) -> type[socketserver.BaseRequestHandler]:
    class Spoken(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            assembly = frames.Assembly(frames.FROM_AGENTS)
            while data := self.request.recv(1 << 16):
                for kind, body in assembly.feed(data):
                    if (answer := fake_server.answered(kind, body)) is not None:
                        self.request.sendall(b"".join(frames.pieces(answer[0], msgspec.json.encode(answer[1]))))

    return Spoken


def _handler(fake_server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(fake_server.endpoint())

        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            token = self.headers["Authorization"].removeprefix("Bearer ")
            answer: Callable[[dict[str, Any], str], Any] = getattr(fake_server, self.path.rpartition("/")[2])
            self._answer(answer(body, token))

        def _answer(self, answer: object) -> None:
            text = msgspec.json.encode(answer)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """In silence."""

    return Handler
