"""How an agent finds the server that leads, among several real ones on this machine that say what they are told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from corral.agent.line import HttpLine, NoAnswer, Refused
from corral.backends.fleet.messages import AgentReport

REPORT = AgentReport(node="n1", session=1, seq=1)
ANSWER = {"epoch": 3, "term": 0}


@contextmanager
def server(status: int, body: object, **headers: str) -> Iterator[str]:
    class Told(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            text = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as there:
        thread = threading.Thread(target=there.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{there.server_port}"
        finally:
            there.shutdown()
            thread.join()


NOT_LEADER = {"code": "not_leader", "detail": "epoch 2 is over"}


@pytest.mark.parametrize(("status", "body"), [(409, NOT_LEADER), (503, {"code": "no_leader"}), (500, None)])
def test_a_server_that_does_not_lead_is_passed_over(status: int, body: object):
    with server(status, body) as first, server(200, ANSWER) as second, HttpLine((first, second), "token") as line:
        with pytest.raises(NoAnswer):
            line.report(REPORT)
        assert line.report(REPORT).epoch == 3
        assert line.report(REPORT).epoch == 3, "it is kept to"


def test_one_that_is_away_is_passed_over():
    with server(200, ANSWER) as second, HttpLine(("http://127.0.0.1:1", second), "token") as line:
        with pytest.raises(NoAnswer, match="does not answer"):
            line.report(REPORT)
        assert line.report(REPORT).epoch == 3


def test_who_is_sent_on_asks_there_at_once():
    with (
        server(200, ANSWER) as leader,
        server(307, None, Location=f"{leader}/v1/agent/report") as standby,
        HttpLine((standby,), "token") as line,
    ):
        assert line.report(REPORT).epoch == 3


def test_a_refusal_is_not_asked_elsewhere():
    said = {"code": "not_your_node", "detail": "you are node:n2", "hint": "join"}
    with server(403, said) as first, server(200, ANSWER) as second, HttpLine((first, second), "token") as line:
        for _ in range(2):
            with pytest.raises(Refused, match="you are node:n2") as refused:
                line.report(REPORT)
            assert (refused.value.status, refused.value.code) == (403, "not_your_node")
