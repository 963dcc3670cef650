"""Requests and answers in all the ways that HTTP/1.1 allows, torn anywhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from corral.io.http import BadAnswer, HttpConnection, Interrupted, connect, connect_unix, fetch


@contextmanager
def answering(*answers: bytes, keeps: bool = False) -> Iterator[HttpConnection]:
    """A peer that sends each of these after a request, byte for byte, and then hangs up (or not)."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # the client may have read enough
                for answer in answers:
                    while b"\r\n\r\n" not in peer.recv(65536):
                        pass
                    for at in range(0, len(answer), 7):  # in small parts: nothing may depend on how it arrives
                        peer.sendall(answer[at : at + 7])
                if keeps:
                    peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = connect(f"http://127.0.0.1:{server.getsockname()[1]}", 5)
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
def test_what_is_no_answer_is_reported(answer: bytes) -> None:
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


def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000) as connection, pytest.raises(BadAnswer, match="longer"):
        connection.send("GET", "/", {}, None, 5.0).read(size_max=100)


def test_another_thread_ends_the_wait() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", keeps=True) as connection:
        head = connection.send("GET", "/", {}, None, 60.0)
        timer = threading.Timer(0.1, connection.interrupt)
        timer.start()
        with pytest.raises(Interrupted):
            head.read()
        timer.join()
        connection.interrupt()  # does no harm


def test_silence_is_reported_while_it_lasts() -> None:
    told = []

    def silent() -> None:
        told.append(1)
        if len(told) == 3:
            raise LookupError("enough")

    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", keeps=True) as connection:
        head = connection.send("GET", "/", {}, None, 5.0)
        connection.watch(silent, 0.01, 0.01)
        with pytest.raises(LookupError):
            head.read()


@contextmanager
def heard(family: int, place: object) -> Iterator[list[bytes]]:
    """A peer that answers one request with "ok", and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(family) as server:
        server.bind(place)  # type: ignore[arg-type]
        server.listen()

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                asked.append(peer.recv(65536))
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        thread = threading.Thread(target=serve)
        thread.start()
        asked.append(repr(server.getsockname()).encode())
        yield asked
        thread.join(10)


def test_one_request_is_fetched() -> None:
    with heard(socket.AF_INET, ("127.0.0.1", 0)) as asked:
        port = int(asked.pop().split(b", ")[1].rstrip(b")"))
        head, body = fetch("POST", f"http://127.0.0.1:{port}/a/b?c=d#e", {"X": "y"}, b"body", timeout_s=5)
    assert (head.status, body) == (200, b"ok")
    lines = asked[0].split(b"\r\n")
    assert lines[0] == b"POST /a/b?c=d HTTP/1.1"
    assert {b"Host: 127.0.0.1:%d" % port, b"X: y", b"Connection: close", b"Content-Length: 4"} <= set(lines)
    assert lines[-1] == b"body"


def test_a_request_over_a_unix_socket(tmp_path: Path) -> None:
    with heard(socket.AF_UNIX, str(tmp_path / "s")):
        connection = connect_unix(str(tmp_path / "s"), 5)
        connection.version = "HTTP/1.0"
        assert connection.send("GET", "/", {}, None, 5).read() == b"ok"
        connection.close()


def test_no_one_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect_unix(str(tmp_path / "none"), 5)
    with pytest.raises(ConnectionRefusedError):
        fetch("GET", "http://127.0.0.1:1", {}, timeout_s=5)
