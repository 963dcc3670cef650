"""How an agent finds the server that leads, among several real ones that answer as the test sets them,
and how it speaks to a gateway that is another's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from corral.agent.agent_dir import GATEWAY, AgentDir, KnownGateway
from corral.agent.gateway_connection import GatewayConnection
from corral.agent.join_servers import JoinServers
from corral.agent.server_connection import NoAnswer, Refused
from corral.remote import frames
from corral.remote.messages import AgentReport, DesiredAsk, EndpointAnswer, LeaseAnswer, Renewal
from tests.runtime.reports import until

ANSWER = {"port": 7}


@contextmanager
def server(status: int, body: object, **headers: str) -> Iterator[str]:
    class Told(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """It is not read."""

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
    with server(status, body) as first, server(200, ANSWER) as second:
        servers = JoinServers((first, second), "token")
        assert servers.endpoint()[1].port == 7
        assert servers.at == second, "it is kept to"


def test_one_that_is_away_is_passed_over():
    with server(200, ANSWER) as second:
        assert JoinServers(("http://127.0.0.1:1", second), "token").endpoint()[1].port == 7


def test_where_no_one_answers_that_is_said():
    with pytest.raises(NoAnswer, match="does not answer"):
        JoinServers(("http://127.0.0.1:1",), "token").endpoint()


def test_who_is_sent_on_asks_there_at_once():
    with server(200, ANSWER) as leader, server(307, None, Location=f"{leader}/v1/agent/endpoint") as standby:
        servers = JoinServers((standby,), "token")
        assert servers.endpoint()[1].port == 7
        assert servers.at == leader


def test_a_refusal_is_not_asked_elsewhere():
    said = {"code": "out_of_scope", "detail": "you are node:n2", "hint": "join"}
    with server(403, said) as first, server(200, ANSWER) as second:
        for _ in range(2):
            with pytest.raises(Refused, match="you are node:n2") as refused:
                JoinServers((first, second), "token").endpoint()
            assert (refused.value.status, refused.value.code) == (403, "out_of_scope")


Answers = Callable[[bytes, bytes], tuple[bytes, object] | None]


@contextmanager
def gateway(answers: Answers) -> Iterator[int]:
    """Answers each message as the test sets it, one connection after the other."""
    place = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                there, _ = place.accept()
            except OSError:
                return
            threading.Thread(target=speak, args=(there,), daemon=True).start()

    def speak(there: socket.socket) -> None:
        assembly = frames.Assembly(frames.FROM_AGENTS)
        with there:
            while data := there.recv(1 << 16):
                for kind, body in assembly.feed(data):
                    answer = (frames.WELCOME, {}) if kind == frames.HELLO else answers(kind, body)
                    if answer is not None:
                        there.sendall(b"".join(frames.pieces(answer[0], msgspec.json.encode(answer[1]))))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield place.getsockname()[1]
    finally:
        place.shutdown(socket.SHUT_RDWR)
        place.close()


def granted(kind: bytes, body: bytes) -> tuple[bytes, object] | None:
    """Renewals only: nothing else is ever answered."""
    if kind != frames.RENEW:
        return None
    asked = msgspec.json.decode(body, type=Renewal)
    return frames.LEASE, LeaseAnswer(seq=asked.seq, epoch=3, term=0, lease_ms=8_000)


def test_renewals_go_on_while_a_report_waits_for_its_answer():
    with gateway(granted) as port, server(200, {"port": port}) as url:
        line = GatewayConnection("n1", JoinServers((url,), "token"), "token")
        waits = threading.Thread(target=_report_in_vain, args=(line,), daemon=True)
        waits.start()
        for seq in range(5):
            assert line.renew(Renewal(seq=seq)).seq == seq
        assert waits.is_alive()
        line.hang_up()
        waits.join(10)
        assert not waits.is_alive(), "a waiting request is ended"


def _report_in_vain(line: GatewayConnection) -> None:
    with pytest.raises(NoAnswer):
        line.report(AgentReport(node="n1", session=1, seq=1))


def test_the_place_is_remembered_while_no_server_can_say_it():
    with gateway(granted) as port:
        with server(200, {"port": port}) as url:
            line = GatewayConnection("n1", JoinServers((url,), "token"), "token")
            line.renew(Renewal(seq=1))
        line.hang_up()
        assert line.renew(Renewal(seq=2)).seq == 2
        line.hang_up()


def test_an_agent_that_starts_while_no_server_answers_renews_where_it_did_before(tmp_path: Path):
    place = AgentDir(tmp_path / "agent")
    place.own()
    with gateway(granted) as port:
        with server(200, {"port": port}) as url:
            urls = (url,)
            line = GatewayConnection("n1", JoinServers(urls, "token"), "token", keep=partial(_keep, place, urls))
            line.renew(Renewal(seq=1))
            line.hang_up()
        last = place.gateway(urls)
        assert last == KnownGateway(urls, "127.0.0.1", port, tls=False)
        again = GatewayConnection("n1", JoinServers(urls, "token"), "token", known=(last.host, last.port, last.tls))
        assert again.renew(Renewal(seq=2)).seq == 2
        again.hang_up()
    assert place.gateway(("http://127.0.0.1:2",)) is None, "of other servers"
    (tmp_path / "agent" / GATEWAY).write_bytes(b"\xff{")
    assert place.gateway(urls) is None


def _keep(place: AgentDir, urls: tuple[str, ...], known: tuple[str, int, bool]) -> None:
    place.keep_gateway(KnownGateway(urls, *known))


def test_a_gateway_that_was_kept_without_tls_is_not_used_for_servers_with():
    with gateway(granted) as port:
        line = GatewayConnection(
            "n1", JoinServers(("https://127.0.0.1:1",), "token"), "token", known=("127.0.0.1", port, False)
        )
        with pytest.raises(NoAnswer):
            line.renew(Renewal(seq=1))


def test_a_lease_that_no_one_waits_for_is_reported():
    """The last one of a server that stops."""

    def farewell(kind: bytes, body: bytes) -> tuple[bytes, object] | None:
        return (frames.LEASE, LeaseAnswer(seq=1, epoch=3, term=0, lease_ms=60_000)) if kind == frames.ASK else None

    told: list[LeaseAnswer] = []
    with gateway(farewell) as port, server(200, {"port": port}) as url:
        line = GatewayConnection("n1", JoinServers((url,), "token"), "token")
        line.when_granted(told.append)
        asking = threading.Thread(target=_ask_in_vain, args=(line,), daemon=True)
        asking.start()
        until(lambda: bool(told))
        assert told[0].lease_ms == 60_000
        line.hang_up()
        asking.join(10)


def _ask_in_vain(line: GatewayConnection) -> None:
    with pytest.raises(NoAnswer):
        line.desired(DesiredAsk(node="n1", epoch=0, term=0))


def test_a_server_with_tls_does_not_lead_agents_to_a_gateway_without():
    servers = JoinServers(("https://127.0.0.1:1",), "token")
    servers.endpoint = lambda: ("127.0.0.1", EndpointAnswer(1))  # type: ignore[method-assign]
    with pytest.raises(NoAnswer, match="without TLS"):
        GatewayConnection("n1", servers, "token").renew(Renewal(seq=1))
