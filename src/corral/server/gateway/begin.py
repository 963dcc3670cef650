"""From the right to lead to a gateway that keeps leases by it. Knows which parts there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from corral.backends.base import Backend
from corral.backends.fleet.backend import FleetBackend
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.link import Setup
from corral.server.gateway.place import bound_for_agents
from corral.server.gateway.process import boot_ms
from corral.server.gateway.roster import Credentials, Roster, write_roster
from corral.server.saved import Known

#: For so long nobody else can lead a data folder after this server was last seen to: it holds the lock, and the gateway
#: ends with it. It covers any pause of the server's process.
ALONE_MS = 60_000


class AgentPlace(Struct, frozen=True):
    """Where agents connect: on this port exactly, or on the usual one if it is free; how many; and by which files of
    TLS."""

    host: str
    port: int | None
    usual: int
    connections_max: int
    tls_certificate: str = ""
    tls_key: str = ""


def begin_gateway(
    backend: Backend, epoch: int, folder: Path, where: AgentPlace, until_s: Callable[[], float] | None = None
) -> AgentGateway | None:
    """None: there are no agents. Raises `PlaceTaken`. ``until_s``: until when this server leads for certain, by the
    clock of the boot; None: for as long as its process lives."""
    if not isinstance(backend, FleetBackend):
        return None
    setup = Setup(
        epoch=epoch, settings=backend.settings, connections_max=where.connections_max,
        tls_certificate=where.tls_certificate, tls_key=where.tls_key,
    )  # fmt: skip

    def authority_ms() -> int:
        return boot_ms() + ALONE_MS if until_s is None else int(until_s() * 1000)

    place = bound_for_agents(where.host, where.port, where.usual, folder)
    return AgentGateway(folder, place, setup, authority_ms)


def keep_roster(folder: Path, known: Known) -> None:
    """As the state says, where that is known already."""
    gone = tuple(name for name, node in known.state.nodes.items() if node.lost)
    write_roster(folder, Roster(Credentials(known.accounts).all(), gone))
