"""A door that agents can knock at: it lets every pilot join, answers its reports, and remembers who was there.

Speaks HTTP on loopback as a server would, and is far from being one: nothing is ever wanted of an agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from corral.backends.fleet.messages import AgentAnswer, AgentReport, JoinAnswer, LogReceipt
from corral.core.cluster.topology import NodeSpec


class Reception:
    def __init__(self) -> None:
        self.joined: list[tuple[str, str]] = []  # (node, token it came with)
        self.specs: dict[str, NodeSpec] = {}
        self.leaving: set[str] = set()
        self.heard_s: dict[str, float] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def is_here(self, node: str) -> bool:
        """Whether the agent of this node spoke a moment ago."""
        return time.monotonic() - self.heard_s.get(node, -1e9) < 1.5

    def close(self) -> None:
        """Who is still speaking is not answered, in silence."""
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._server.shutdown()
        self._server.server_close()

    def join(self, body: dict[str, Any], token: str) -> JoinAnswer:
        self.joined.append((body["node"], token))
        return JoinAnswer(body["node"], f"credential-of-{body['node']}")

    def report(self, body: dict[str, Any], _token: str) -> AgentAnswer:
        said = msgspec.convert(body, AgentReport)
        self.heard_s[said.node] = time.monotonic()
        if said.spec is not None:
            self.specs[said.node] = said.spec
        if said.leaves_in_ms is not None:
            self.leaving.add(said.node)
        return AgentAnswer(
            epoch=1, term=0, version=said.version, session=said.session, lease_ms=8_000, heartbeat_ms=500,
            wants_full=not said.is_full and said.node not in self.specs, is_leaving=said.leaves_in_ms is not None,
        )  # fmt: skip

    def desired(self, _body: dict[str, Any], _token: str) -> None:
        time.sleep(0.5)

    def logs(self, body: dict[str, Any], _token: str) -> LogReceipt:
        return LogReceipt(tuple(0 for _ in body.get("chunks", ())))


def _handler(reception: Reception) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            token = self.headers["Authorization"].removeprefix("Bearer ")
            answer: Callable[[dict[str, Any], str], Any] = getattr(reception, self.path.rpartition("/")[2])
            text = msgspec.json.encode(answer(body, token))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """In silence."""

    return Handler
