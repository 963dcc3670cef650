"""Answers in all the ways that HTTP/1.1 allows, torn anywhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from corral.client.http1 import BadAnswer, HttpConnection


@contextmanager
def answering(*answers: bytes, keeps: bool = False) -> Iterator[HttpConnection]:
    """A peer that sends each of these after a request, byte for byte, and then hangs up (or not)."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # whoever asked may have heard enough
                for answer in answers:
                    while b"\r\n\r\n" not in peer.recv(65536):
                        pass
                    for at in range(0, len(answer), 7):  # in small parts: nothing may depend on how it arrives
                        peer.sendall(answer[at : at + 7])
                if keeps:
                    peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = HttpConnection("127.0.0.1", server.getsockname()[1], tls=None, connect_s=5)
        try:
            yield connection
        finally:
            connection.close()
            thread.join(10)


def ask(connection: HttpConnection) -> tuple[int, bytes, bool]:
    head = connection.send("GET", "/", {}, None, 5.0)
    return head.status, head.read(), head.keeps


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, b"hello", True), id="by length"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", False), id="without a body"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", (200, b"", True), id="with an empty body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: z\r\n\r\n",
            (200, b"hello", True), id="in chunks",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nto the end", (200, b"to the end", False), id="to the end"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", True),
            id="after a provisional one",
        ),
        pytest.param(
            b"HTTP/1.1 503 X\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", (503, b"x", False), id="and hung up"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, b"x", False), id="of an old server"),
    ],
)  # fmt: skip
def test_an_answer_is_read(answer: bytes, told: tuple[int, bytes, bool]) -> None:
    with answering(answer) as connection:
        assert ask(connection) == told


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="half a head"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", id="something else"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", id="half a body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="an impossible length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", id="half a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nhel", id="an impossible chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhel\r\n", id="too long a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, id="an endless head"),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes) -> None:
    with answering(answer) as connection, pytest.raises(BadAnswer):
        ask(connection)


def test_a_connection_is_used_again_and_its_end_is_seen() -> None:
    one = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    two = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"
    with answering(one, two) as connection:
        assert ask(connection)[1] == b"a"
        assert connection.is_quiet
        assert ask(connection)[1] == b"b"
        connection.patience(5)
        assert connection.take(1) == b""  # wait for its end
        assert not connection.is_quiet


def test_silence_is_a_timeout() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", keeps=True) as connection:
        head = connection.send("GET", "/", {}, None, 5.0)
        connection.patience(0.05)
        with pytest.raises(TimeoutError):
            head.read()
