"""The server as a process: open the data directory, start, serve the API, shut down in order.

Knows options, files of the data directory and signals. ``serve`` returns an exit code after a signal; an error at the
start is a ``CannotStart`` that says what to do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
import uvicorn
import uvloop
from msgspec import Struct, field

from corral import __version__
from corral.core.accounts.accounts import TokenIssued
from corral.core.accounts.identity import AccountRules
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import QueueSpec, Settings
from corral.io.files import write_file
from corral.remote.backend import RemoteBackend
from corral.runtime.base import Backend, BackendUnusable, StaleEpoch
from corral.server.api.app import Api, make_app
from corral.server.api.connection_limit import ConnectionBudget, connections_for
from corral.server.api.http.header_timeout import timed_heads
from corral.server.api.http.settings import ApiSettings
from corral.server.auth import new_token
from corral.server.batches.batch_link import BatchSetup
from corral.server.gateway.begin import GatewayAddress, begin_gateway, keep_roster
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.listener import PortTaken
from corral.server.ha.redirect import Redirect, Starting, Switch
from corral.server.ha.standby import Lead, Standby
from corral.server.intakes.intake_child import IntakeChild
from corral.server.intakes.message_handlers import views
from corral.server.loop import SYSTEM
from corral.server.metrics import Metrics
from corral.server.node_health.disk import DiskWatch
from corral.server.recovery import founding, load, set_logs_aside
from corral.server.server import Server
from corral.server.shutdown import LOST, ServerStopped, end_within, first
from corral.server.sign_in.ways import BadSignIn, check_sign_in
from corral.server.vault import first_token, secrets_of
from corral.server.vault.sealing_keys import BadKey
from corral.store.attest import BadAttestation, signer_of
from corral.store.journal import Entry, Journal
from corral.store.reserve import Reserve
from corral.store.rings import Rings
from corral.store.sqlite.journal import SqliteJournal
from corral.store.sqlite.rings import SqliteChunks
from corral.wire.address import is_plain
from corral.wire.brokers.intake_rules import IntakeRules
from corral.wire.codec import encode
from corral.wire.config import PolicyChoice
from corral.wire.health import HealthSettings
from corral.wire.site.retention import AttestRules
from corral.wire.topology import NodePlaces

log = structlog.get_logger(__name__)

DEFAULT_PORT = 7411
SERVER_FILE = "server.json"
GRACEFUL_S = 5
FULL_PATIENCE_S = 600.0  # how long the server waits for room on a full disk before it gives up
KEEP_ALIVE_S = 75  # longer than any agent or client is silent on a connection that it will use again
_STOP_S = 60.0  # after a signal: saving an image of a large state takes time
_END_S = 20.0  # after a failure, or of a standby
_SWITCH_S = 0.001  # how long a busy thread may keep the interpreter from the writer of the journal


class CannotStart(Exception):
    """Why the server cannot start, and what to do."""


class Options(Struct, frozen=True, kw_only=True):
    """Options of ``corral up``. ``credentials``: file for the administrator's token, written at the first start."""

    data: Path
    credentials: Path
    database: str = ""  # the address of a shared database; empty: a file in the data folder
    advertise: str = ""  # the URL of this server for others, if not host and port
    peers: tuple[str, ...] = ()  # URLs of other servers on the same database
    lease_s: float = 5.0  # on a shared database: after the last renewal no other server may lead for this time
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    policy: PolicyChoice = PolicyChoice()
    settings: Settings = Settings()
    places: NodePlaces = field(default_factory=NodePlaces)  # topology of the nodes
    rules: SiteRules = SiteRules()  # limits of jobs, where a queue has none
    health: HealthSettings = HealthSettings()  # when nodes are considered lemons
    queues: tuple[QueueSpec, ...] = (QueueSpec(name="default"),)
    administrator: str = "admin"
    administrator_account: str = ""  # the account of this machine that their jobs run as; used at the first start
    accounts: AccountRules = AccountRules()
    keep_ended: int = 1_000
    keep_ended_ms: int = 86_400_000
    secret_key_file: str = ""  # file with the keys that encrypt secrets; empty: the default one
    attest: AttestRules = AttestRules()
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""  # the CA of the certificate; saved with the administrator's token
    connections_max: int = 4_000  # beyond this, requests are answered with 503
    agent_port: int | None = None  # the port for agents; None: the next after ``port``, if it is free
    agent_connections_max: int = 8_000
    api: ApiSettings = ApiSettings()
    intake: IntakeRules = IntakeRules()  # the broker that submissions are taken from

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_certificate else 'http'}://{host}:{self.port}"

    @property
    def agents(self) -> GatewayAddress:
        return GatewayAddress(
            self.host, self.agent_port, self.port + 1, self.agent_connections_max, self.tls_certificate, self.tls_key
        )

    @property
    def public_url(self) -> str:
        return self.advertise or self.url


class ServerFile(Struct, frozen=True):
    """What other programs on this machine can read about a running server."""

    url: str
    pid: int
    started_ms: int
    version: str = ""
    waits_for: str = ""  # what it needs before it is ready


def serve(options: Options, backend: Backend) -> int:
    """Run until SIGTERM or SIGINT. 0: stopped by a signal; 1: the journal could not be written."""
    if options.policy.name != PolicyChoice().name:
        _check_policy(options.policy)
    _log_to_standard_error()
    sys.setswitchinterval(_SWITCH_S)
    try:
        if options.attest.is_on:
            signer_of(Path(options.attest.key_file))
        if options.api.sign_in.is_on:
            check_sign_in(options.api.sign_in)
        ground, place = _opened(options, backend)
    except (BadKey, BadAttestation, BadSignIn) as wrong:
        raise CannotStart(str(wrong)) from None
    try:
        with place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Serving(options, backend, place).run(ground))
    except BackendUnusable as wrong:
        raise CannotStart(str(wrong)) from None


def _check_policy(choice: PolicyChoice) -> None:
    from corral.server.planner.process import chosen_policy  # loads all policies, which the server does not need

    if isinstance(wrong := chosen_policy(choice), Refusal):
        raise CannotStart(str(wrong))


def _opened(options: Options, backend: Backend) -> tuple[Lead | Standby, socket.socket]:
    """Lock the data, then bind the address; nothing is written before this server has both. Leases of nodes are renewed
    from here on, however long loading the state takes."""
    if options.database:
        found = partial(_found, options=options)
        standby = Standby(
            options.database, options.data, options.public_url, options.lease_s, found, options.secret_key_file
        )
        try:
            return standby, _bound(options)
        except BaseException:
            standby.close()
            raise
    journal, gateway = SqliteJournal(options.data), None
    try:
        journal.reserve, journal.full_patience_s = Reserve(options.data), FULL_PATIENCE_S
        place = _bound(options)
        if journal.head.seq == 0:
            _found(journal, options)
        secrets = secrets_of(options.data, options.secret_key_file)
        gateway = _gateway(options, backend, journal)
        chunks = SqliteChunks(options.data)
        return Lead(load(journal), journal, journal.lookup, secrets, gateway=gateway, chunks=chunks), place
    except BaseException:
        if gateway is not None:
            gateway.close()
        journal.close()
        raise


def _gateway(
    options: Options, backend: Backend, journal: Journal, until_s: Callable[[], float] | None = None
) -> AgentGateway | None:
    try:
        return begin_gateway(backend, journal.epoch, options.data, options.agents, until_s)
    except PortTaken as taken:
        raise CannotStart(f"{taken}. Choose another with --agent-port") from None


def _bound(options: Options) -> socket.socket:
    """Bind the address. Connections are accepted later, when the server can answer."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    place = socket.socket(family, socket.SOCK_STREAM)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((options.host, options.port))
    except OSError as wrong:
        place.close()
        where = f"{options.host}:{options.port}"
        if wrong.errno == errno.EADDRINUSE:
            raise CannotStart(f"cannot listen on {where}: the port is in use. Choose another port") from None
        raise CannotStart(f"cannot listen on {where}: {wrong.strerror}. Choose another address or port") from None
    return place


def _found(journal: Journal, options: Options) -> None:
    """First start: create an administrator, a token for the command line, and the queues."""
    now_ms = time.time_ns() // 1_000_000
    set_logs_aside(options.data, now_ms)
    token = new_token()
    issued = TokenIssued(
        now_ms, token.id, options.administrator, token.digest, first_token.NAME, expires_ms=now_ms + first_token.LIFE_MS
    )
    account = options.administrator_account
    events = founding(options.settings, options.queues, options.administrator, issued, now_ms, account)
    # the token first: if the start fails in between, the next one is a first start again and makes another token
    kept = {"url": options.public_url, "token": token.text}
    allowed = {"allow_plain_http": True} if is_plain(options.public_url) else {}  # by the user who started this server
    first_token.set_aside(options.credentials, options.public_url)
    write_private(options.credentials, kept | ({"ca": options.tls_ca} if options.tls_ca else {}) | allowed)
    journal.append([Entry(now_ms, SYSTEM, encode(event)) for event in events]).result()


class _Serving:
    """The life of the process: standby, leader, shutdown."""

    def __init__(self, options: Options, backend: Backend, place: socket.socket) -> None:
        self._options = options
        self._backend = backend
        self._place = place
        self._stop = asyncio.Event()
        self._switch = Switch(Starting())
        self._http = _Http(ConnectionBudget(self._switch, connections_for(options.connections_max)), options)
        self._task: asyncio.Task[None] | None = None

    async def run(self, ground: Lead | Standby) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
        try:
            if isinstance(ground, Lead):
                return await self._lead(ground)
            return await self._take_turns(ground)
        finally:
            end_within(_END_S)
            (self._options.data / SERVER_FILE).unlink(missing_ok=True)
            await self._end_listening()

    def _asked_to_stop(self) -> None:
        self._stop.set()
        end_within(_STOP_S)

    async def _take_turns(self, standby: Standby) -> int:
        """Serve reads as a standby until this server becomes the leader."""
        self._switch.app = Starting(lambda: standby.database)
        ways: list[Callable[[], None]] = []

        def give_way() -> None:
            for way in ways:
                way()

        try:
            await self._listen()
            _tell_where(self._options, "the database")
            if not await standby.open(self._stop):
                return 0
            app = make_app(standby.service, self._options.api)
            ways += [standby.service.end_feeds, app.close]
            self._switch.app = Redirect(app, standby.leader, standby.service.vitals)
            _tell_where(self._options)
            lead = await standby.until_leading(self._stop)
            return 0 if lead is None else await self._lead(lead, give_way)
        finally:
            end_within(_END_S)
            give_way()
            await self._end_listening()
            standby.close()

    async def _lead(self, lead: Lead, give_way: Callable[[], None] | None = None) -> int:
        options = self._options
        urls = (options.public_url, *options.peers)
        gateway = lead.gateway
        if gateway is None and isinstance(self._backend, RemoteBackend):
            keep_roster(options.data, lead.known)
            gateway = _gateway(options, self._backend, lead.journal, lead.until_s)
        server = Server(
            lead.known, lead.journal, lead.lookup, self._backend, lead.secrets, options.policy, urls, gateway
        )
        server.places, server.watch.settings = options.places, options.health
        server.attest = options.attest
        server.disk = DiskWatch(options.data, Reserve(options.data), server.service)
        server.service.rules, server.loop.account_rules = options.rules, options.accounts
        server.timers.keep_ended, server.timers.keep_ended_ms = options.keep_ended, options.keep_ended_ms
        server.service.leading = lead.vitals
        server.service.series = Rings(lead.chunks)
        server.batch_setup = BatchSetup(
            folder=str(options.data),
            database=options.database,
            epoch=lead.journal.epoch,
            host=options.host,
            port=options.port + 2 if options.port < 65_000 else 0,
            tls_certificate=options.tls_certificate,
            tls_key=options.tls_key,
        )
        server.batch_host, server.batch_ca = urlsplit(options.public_url).hostname or "127.0.0.1", options.tls_ca
        server.first_token = first_token.FirstToken(options.credentials, write_private)
        lead.when_lost(partial(_from_elsewhere, asyncio.get_running_loop(), server.durability.stop))
        try:
            if await self._has_begun(server):
                app = self._switch.app = _api(server, options)
                if give_way is not None:
                    give_way()
                if self._task is None:
                    await self._listen()
                    _tell_where(options)
                if options.intake.broker:
                    server.run_beside(IntakeChild(options.intake, server.service, options.url, options.tls_ca).run())
                await self._until_over(server)
                server.service.end_feeds()
                app.close()
        except (*LOST, ServerStopped, StaleEpoch) as lost:
            server.durability.stop(lost)
        finally:
            if server.durability.failure is not None:
                end_within(_END_S)
            await self._end_listening()
            await server.close()
            if gateway is not None:
                await asyncio.to_thread(gateway.close)
        return 0 if server.durability.failure is None else 1

    async def _has_begun(self, server: Server) -> bool:
        """Start the server. False: a signal came, or leadership was lost, before it was ready."""
        begin = asyncio.create_task(server.begin())
        await first(begin, self._stop, server.durability.stopped)
        if begin.done():
            await begin
            return server.durability.failure is None
        begin.cancel()
        await asyncio.gather(begin, return_exceptions=True)
        return False

    async def _until_over(self, server: Server) -> None:
        assert self._task is not None
        await first(self._task, self._stop, server.durability.stopped)

    async def _listen(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._http.serve([self._place]))
            await self._http.until_listening(self._task)

    async def _end_listening(self) -> None:
        if self._task is not None:
            self._http.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)


def _api(server: Server, options: Options) -> Api:
    metrics = Metrics(server.service.state, server.service.now_ms())
    server.durability.watchers.append(metrics.take)
    metrics.fleet = None if server.service.fleet is None else server.service.fleet.counts
    metrics.disk = server.disk
    metrics.activities = server.service.activities
    if server.service.batches is not None:
        scaler = server.service.batches[1]
        metrics.batches = lambda: scaler.statuses
    server.loop.meter = metrics
    server.durability.measure = metrics.appended
    app = make_app(server.service, options.api, metrics)
    metrics.intakes = lambda: views(app.shared.intakes)
    return app


def _from_elsewhere(loop: asyncio.AbstractEventLoop, stop: Callable[[BaseException], None], why: BaseException) -> None:
    """Called in another thread: stop the server in its own thread, unless it has ended meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(stop, why)


class _Http(uvicorn.Server):
    """uvicorn, with signals left to the server."""

    def __init__(self, budget: ConnectionBudget, options: Options) -> None:
        super().__init__(
            uvicorn.Config(
                budget,
                host=options.host,
                port=options.port,
                http=budget.counted(timed_heads(options.api)),
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the client is the peer of the connection, whatever a header claims
                timeout_graceful_shutdown=GRACEFUL_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
                backlog=4096,
                ssl_certfile=options.tls_certificate or None,
                ssl_keyfile=options.tls_key or None,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def until_listening(self, serving: asyncio.Task[None]) -> None:
        while not self.started:
            if serving.done():
                raise CannotStart("the HTTP server did not start; the error is in the log above")
            await asyncio.sleep(0.005)


def _tell_where(options: Options, waits_for: str = "") -> None:
    here = ServerFile(options.url, os.getpid(), time.time_ns() // 1_000_000, __version__, waits_for)
    write_private(options.data / SERVER_FILE, here)
    if not waits_for:
        log.info("serving", url=options.url)


def write_private(path: Path, value: Any) -> None:
    """Write a small file that only its owner may read, atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, msgspec.json.encode(value))


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
