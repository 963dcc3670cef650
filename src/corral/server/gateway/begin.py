"""Starts the gateway for a leading server. Knows which parts it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from corral.remote.backend import RemoteBackend
from corral.runtime.base import Backend
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.link import Setup
from corral.server.gateway.listener import bound_for_agents
from corral.server.gateway.process import boot_ms
from corral.server.gateway.roster import NodeCredentials, Roster, write_roster
from corral.server.journal_state import JournalState

#: How long no other server can lead with this data folder after this one was last alive: it holds the lock, and the
#: gateway ends with it. Long enough for any pause of the server's process.
ALONE_MS = 60_000


class GatewayAddress(Struct, frozen=True):
    """Where agents connect: this port exactly, or if None the ``usual`` one if it is free; limits and TLS files."""

    host: str
    port: int | None
    usual: int
    connections_max: int
    tls_certificate: str = ""
    tls_key: str = ""


def begin_gateway(
    backend: Backend, epoch: int, folder: Path, where: GatewayAddress, until_s: Callable[[], float] | None = None
) -> AgentGateway | None:
    """Start the gateway; None if there are no agents. Raises `PortTaken`. ``until_s``: how long this server certainly
    leads, by the boot clock; None: as long as its process lives."""
    if not isinstance(backend, RemoteBackend):
        return None
    setup = Setup(
        epoch=epoch,
        settings=backend.settings,
        connections_max=where.connections_max,
        tls_certificate=where.tls_certificate,
        tls_key=where.tls_key,
    )

    def authority_ms() -> int:
        return boot_ms() + ALONE_MS if until_s is None else int(until_s() * 1000)

    place = bound_for_agents(where.host, where.port, where.usual, folder)
    return AgentGateway(folder, place, setup, authority_ms)


def keep_roster(folder: Path, known: JournalState) -> None:
    """Save the roster from a loaded state."""
    gone = tuple(name for name, node in known.state.nodes.items() if node.lost)
    write_roster(folder, Roster(NodeCredentials(known.accounts).all(), gone))
