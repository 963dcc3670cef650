"""Where the supervisors in pods connect: results come in, orders go out, one line of JSON each, over TLS.

One thread with an event loop serves all connections. A pod proves who it is with a token that follows from its name and
a key that only the server and the order have. Knows pods by name, not tasks; what a line means is up to its `Visitor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from msgspec import Struct

_LINE_MAX = 1 << 16
_HELLO_S = 10.0
_CONNECTIONS_MAX = 20_000
_WAITING_MAX = 1 << 20  # bytes not yet taken by one pod

log = structlog.get_logger(__name__)


class PortKeys(Struct, frozen=True):
    """The certificate that supervisors accept, its key, and the key of their tokens, all as text."""

    certificate: str
    private_key: str
    token_key: str

    def token(self, namespace: str, pod: str) -> str:
        return hmac.new(self.token_key.encode(), f"{namespace}/{pod}".encode(), hashlib.sha256).hexdigest()


class Visitor(Protocol):
    """Called in the thread of the port; must not wait."""

    def connected(self, namespace: str, pod: str, send: Callable[[dict[str, Any]], None]) -> None: ...

    def received(self, namespace: str, pod: str, known: dict[str, Any]) -> bool:
        """What a supervisor knows of its task. Returns whether its end is confirmed."""
        ...

    def disconnected(self, namespace: str, pod: str) -> None: ...


def new_keys() -> PortKeys:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "corral")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)  # clocks of nodes may be behind
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365 * 60))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    import secrets

    return PortKeys(certificate.public_bytes(pem).decode(), private.decode(), secrets.token_hex(32))


class SupervisorPort:
    """Listens from `open` to `close`."""

    def __init__(self, keys: PortKeys, visitor: Visitor) -> None:
        self._keys = keys
        self._visitor = visitor
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="supervisor-port", daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def open(self, port: int) -> int:
        """The port that it listens on. Raises OSError."""
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        try:
            listening = socket.create_server(
                ("", port), family=family, backlog=1024, dualstack_ipv6=family is socket.AF_INET6
            )
        except OSError:
            self._loop.close()
            raise
        self._thread.start()
        self._run(self._begin(listening))
        number: int = listening.getsockname()[1]
        return number

    async def _begin(self, listening: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.NamedTemporaryFile("w") as file:  # the module reads files only; this one is ours alone
            file.write(self._keys.certificate + self._keys.private_key)
            file.flush()
            context.load_cert_chain(file.name)
        self._server = await asyncio.start_server(
            self._serve, sock=listening, ssl=context, limit=_LINE_MAX, ssl_handshake_timeout=_HELLO_S
        )

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = _message(await reader.readline())
            namespace, _, pod = str(hello.get("pod", "")).rpartition("/")
            expected = self._keys.token(namespace, pod)
            if not hmac.compare_digest(expected.encode(), str(hello.get("token", "")).encode()):
                log.warning("a connection with a wrong token was refused", pod=pod[:100])
                return
            await self._talk(reader, writer, namespace, pod, hello)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it comes back by itself
        except asyncio.CancelledError:
            pass  # closing; raised, it would be logged as a fault
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, namespace: str, pod: str,
        first: dict[str, Any],
    ) -> None:  # fmt: skip
        def send(message: dict[str, Any]) -> None:
            self._loop.call_soon_threadsafe(self._write, writer, message)

        self._visitor.connected(namespace, pod, send)
        try:
            message = first
            while True:
                known = message.get("known")
                if isinstance(known, dict) and self._visitor.received(namespace, pod, known):
                    self._write(writer, {"confirmed": True})
                line = await reader.readline()
                if not line:
                    return
                message = _message(line)
        finally:
            self._visitor.disconnected(namespace, pod)

    def _write(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if writer.transport.is_closing():
            return
        if writer.transport.get_write_buffer_size() > _WAITING_MAX:
            writer.transport.abort()
        else:
            writer.write(json.dumps(message).encode() + b"\n")


def _message(line: bytes) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a message")
    return found


def own_address() -> str:
    """The address of this machine that others probably reach. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return found if not ipaddress.ip_address(found).is_unspecified else "127.0.0.1"
