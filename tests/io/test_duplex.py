"""A connection through HTTP: its chunks may be cut anywhere."""

import socket
import threading

import pytest

from corral.io.duplex import Duplex

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b"5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"


@pytest.mark.parametrize("cut", range(1, len(BODY)))
def test_chunks_may_arrive_in_any_pieces(cut: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        arrived = threading.Event()

        def serve() -> None:
            there, _ = place.accept()
            with there:
                there.recv(1 << 16)
                there.sendall(HEAD)
                there.sendall(BODY[:cut])
                arrived.wait(10)
                there.sendall(BODY[cut:])

        server = threading.Thread(target=serve)
        server.start()
        duplex = Duplex(f"http://127.0.0.1:{place.getsockname()[1]}/x", {}, None, 10)
        own, other = socket.socketpair()
        with own, other:
            copy = threading.Thread(target=duplex.splice, args=(own,))
            copy.start()
            other.settimeout(10)
            found = other.recv(100) if cut > 4 else b""
            arrived.set()
            while len(found) < 12:
                found += other.recv(100)
            copy.join(10)
        server.join(10)
        duplex.close()
        assert found == b"hello, world"
