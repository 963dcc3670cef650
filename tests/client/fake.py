"""A server that does what a test tells it to: answers, refuses, falls silent, hangs up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """``drop``: hang up instead of answering. ``stream``: parts that are sent one by one."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    stream: Iterator[bytes] | None = None


Answering = Callable[[Request], Reply]


class Fake:
    """``on`` says how a path is answered; ``seen`` is everything that was asked."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answers: dict[tuple[str, str], Answering] = {}
        self.connections = 0
        self.url = ""

    def on(self, method: str, path: str, answering: Answering | Reply) -> None:
        self.answers[method, path] = answering if callable(answering) else lambda _: answering

    def then(self, method: str, path: str, *replies: Reply) -> None:
        """One reply after the other; the last one from then on."""
        left = list(replies)
        self.on(method, path, lambda _: left.pop(0) if len(left) > 1 else left[0])

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.seen if (request.method, request.path) == (method, path)]


def problem(status: int, code: str, **more: Any) -> Reply:
    return Reply({"title": "No", "status": status, "code": code, "detail": "because", **more}, status)


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            fake.connections += 1
            super().setup()

        def _any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            query = dict(parse_qsl(parts.query))
            request = Request(self.command, parts.path, query, headers, json.loads(sent) if sent else None)
            fake.seen.append(request)
            missing = problem(404, "no_such_route")
            reply = fake.answers.get((request.method, request.path), lambda _: missing)(request)
            self._reply(reply)

        def _reply(self, reply: Reply) -> None:
            if reply.drop:
                self.close_connection = True
                return
            if reply.stream is not None:
                self._stream(reply)
                return
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, reply: Reply) -> None:
            assert reply.stream is not None
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            try:
                for part in reply.stream:
                    if not part:
                        return  # torn off, without the last chunk
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass  # the client has disconnected

        do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 - the names of the standard library

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
