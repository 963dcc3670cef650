"""A proxy before the API server that breaks what tests want broken: answers lost before or after the effect, answers of
429, watches cut or silent. It speaks plain HTTP to the client and TLS to the server."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kubernetes.control_plane import ControlPlane

PASS, DROP, LOSE, BUSY, FREEZE = "pass", "drop", "lose", "busy", "freeze"
#: What happens to a request (method, path with query): `PASS`; `DROP`: it never arrives; `LOSE`: it has its effect, and
#: the answer is lost; `BUSY`: 429 with Retry-After; `FREEZE`: a watch that brings nothing and does not end.
Rule = Callable[[str, str], str]


class BreakingProxy:
    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.rule: Rule = lambda method, path: PASS
        self.seen: list[tuple[str, str, str]] = []  # method, path, what happened to it
        self.retry_after_s = 1
        self._streams: list[socket.socket] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def handle(self) -> None:
                with suppress(OSError):
                    super().handle()

            def log_message(self, *arguments: Any) -> None:
                pass

            def do(self) -> None:
                proxy._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *arguments: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig-of-proxy"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": plane.token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )  # fmt: skip

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        action = self.rule(handler.command, handler.path)
        with self._lock:
            self.seen.append((handler.command, handler.path, action))
        handler.close_connection = action in (DROP, LOSE, FREEZE)
        if action == DROP:
            return
        if action == BUSY:
            status = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "too many requests"}
            content = json.dumps(status).encode()
            handler.send_response(429)
            handler.send_header("Retry-After", str(self.retry_after_s))
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
            return
        try:
            self._forward(handler, body, action)
        except (OSError, http.client.HTTPException):
            handler.close_connection = True

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes, action: str) -> None:
        tls = ssl.create_default_context(cafile=str(self.plane.ca))
        server = http.client.HTTPSConnection("127.0.0.1", self.plane.port + 2, context=tls, timeout=330)
        headers = {
            k: v for k, v in handler.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")
        }
        try:
            server.request(handler.command, handler.path, body or None, headers)
            answer = server.getresponse()
            if action == LOSE:
                answer.read()
                return
            handler.send_response(answer.status)
            for name in ("Content-Type", "Retry-After"):
                if answer.headers.get(name):
                    handler.send_header(name, answer.headers[name])
            if answer.headers.get("Content-Length") is None:
                handler.send_header("Connection", "close")
                handler.end_headers()
                handler.close_connection = True
                self._pipe(handler, answer, action)
            else:
                content = answer.read()
                handler.send_header("Content-Length", str(len(content)))
                handler.end_headers()
                handler.wfile.write(content)
        finally:
            server.close()

    def _pipe(self, handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, action: str) -> None:
        """A stream, until either side ends it."""
        handler.wfile.flush()
        with self._lock:
            self._streams.append(handler.connection)
        try:
            while content := answer.read1(1 << 16):
                if action != FREEZE:
                    handler.wfile.write(content)
                    handler.wfile.flush()
        finally:
            with self._lock:
                self._streams.remove(handler.connection)

    def cut(self) -> int:
        """End all streams in the middle. Returns how many there were."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        return len(streams)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cut()
