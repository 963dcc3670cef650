"""The server as a process: open the data directory, begin, serve the interface, end in order.

Knows options, files of the data directory and signals. ``serve`` returns when somebody asked it to stop, and says with
which exit code; what keeps it from starting is a ``CannotStart`` that says what to do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvicorn
import uvloop
from msgspec import Struct

from corral import __version__
from corral.backends.base import Backend
from corral.core.intake.refusal import Refusal
from corral.core.model import QueueSpec, Settings
from corral.core.people.accounts import TokenIssued
from corral.server.api.app import make_app
from corral.server.api.entry.settings import ApiSettings
from corral.server.auth import new_token
from corral.server.metrics import Metrics
from corral.server.running import Running
from corral.server.saved import Known
from corral.server.secrets import SecretStore
from corral.server.start import FOUNDER, founding, load
from corral.server.thinking import chosen_policy
from corral.store.journal import Entry, Journal
from corral.store.sqlite.journal import SqliteJournal
from corral.wire.codec import encode
from corral.wire.config import PolicyChoice

log = structlog.get_logger(__name__)

DEFAULT_PORT = 7411
SERVER_FILE = "server.json"
GRACEFUL_S = 5
_OWN_FILES = 256  # journal, readers, planner, tasks
_SWITCH_S = 0.001  # how long a busy thread keeps the interpreter from the journal's writer


class CannotStart(Exception):
    """What keeps the server from starting, and what to do about it."""


class Options(Struct, frozen=True, kw_only=True):
    """What ``corral up`` was told. ``credentials``: where the administrator's token goes at a first start."""

    data: Path
    credentials: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    policy: PolicyChoice = PolicyChoice()
    settings: Settings = Settings()
    queues: tuple[QueueSpec, ...] = (QueueSpec(name="default"),)
    administrator: str = "admin"
    keep_ended: int = 1_000
    keep_ended_ms: int = 86_400_000
    tls_certificate: str = ""
    tls_key: str = ""
    connections_max: int = 4_000  # beyond, requests are answered with 503
    api: ApiSettings = ApiSettings()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_certificate else 'http'}://{host}:{self.port}"


class ServerFile(Struct, frozen=True):
    """What others on this machine find out about a running server."""

    url: str
    pid: int
    started_ms: int
    version: str = ""


def serve(options: Options, backend: Backend) -> int:
    """Run until SIGTERM or SIGINT. 0: asked to stop; 1: the journal could not be written any more."""
    if isinstance(wrong := chosen_policy(options.policy), Refusal):
        raise CannotStart(str(wrong))
    _log_to_standard_error()
    sys.setswitchinterval(_SWITCH_S)
    journal = SqliteJournal(options.data)
    try:
        place = _bound(options)
        if journal.head.seq == 0:
            _found(journal, options)
        known = load(journal)
    except BaseException:
        journal.close()
        raise
    with place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(options, known, journal, backend, place))


def _bound(options: Options) -> socket.socket:
    """The address is ours from here on; nobody is let in before the server can answer."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    place = socket.socket(family, socket.SOCK_STREAM)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((options.host, options.port))
    except OSError as wrong:
        place.close()
        where = f"{options.host}:{options.port}"
        if wrong.errno == errno.EADDRINUSE:
            raise CannotStart(f"cannot listen on {where}: another program has it. Choose another port") from None
        raise CannotStart(f"cannot listen on {where}: {wrong.strerror}. Choose another address or port") from None
    return place


def _found(journal: Journal, options: Options) -> None:
    """A first start: an administrator, its token for the command line, and the queues."""
    now_ms = time.time_ns() // 1_000_000
    token = new_token()
    issued = TokenIssued(now_ms, token.id, options.administrator, token.digest, name="first start")
    events = founding(options.settings, options.queues, options.administrator, issued, now_ms)
    # the token first: a start that ends in between is a first start again, and makes another one
    write_private(options.credentials, {"url": options.url, "token": token.text})
    journal.append([Entry(now_ms, FOUNDER, encode(event)) for event in events]).result()


async def _run(options: Options, known: Known, journal: SqliteJournal, backend: Backend, place: socket.socket) -> int:
    secrets = SecretStore(options.data / "secrets")
    server = Running(known, journal, journal.lookup, backend, secrets, options.policy)
    server.loop.keep_ended, server.loop.keep_ended_ms = options.keep_ended, options.keep_ended_ms
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.begin()
    metrics = Metrics(server.service.state, server.service.now_ms())
    server.loop.watchers.append(metrics.take)
    server.loop.meter = metrics
    app = make_app(server.service, options.api, metrics)
    http = _Http(app, options)
    serving = asyncio.create_task(http.serve([place]))
    try:
        await http.until_listening(serving)
        _tell_where(options)
        ends = [asyncio.create_task(each) for each in (stop.wait(), server.loop.stopped.wait())]
        await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        (options.data / SERVER_FILE).unlink(missing_ok=True)
        http.should_exit = True
        server.service.end_feeds()
        app.close()
        await asyncio.gather(serving, return_exceptions=True)
        await server.close()
    return 0 if server.loop.failure is None else 1


class _Http(uvicorn.Server):
    """uvicorn, with signals left to the server."""

    def __init__(self, app: Any, options: Options) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=options.host,
                port=options.port,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # who asks is who has connected, whatever a header claims
                timeout_graceful_shutdown=GRACEFUL_S,
                lifespan="off",
                backlog=4096,
                ssl_certfile=options.tls_certificate or None,
                ssl_keyfile=options.tls_key or None,
                limit_concurrency=_connections(options.connections_max),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def until_listening(self, serving: asyncio.Task[None]) -> None:
        while not self.started:
            if serving.done():
                raise CannotStart("the interface did not start; see above")
            await asyncio.sleep(0.005)


def _connections(most: int) -> int:
    """So many that files are left for everything else, after asking for as many files as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, soft - _OWN_FILES)


def _tell_where(options: Options) -> None:
    here = ServerFile(options.url, os.getpid(), time.time_ns() // 1_000_000, __version__)
    write_private(options.data / SERVER_FILE, here)
    log.info("serving", url=options.url)


def write_private(path: Path, value: Any) -> None:
    """A small file that only its owner may read, replaced in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _log_to_standard_error() -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
