"""``corral agent``: make this machine do what the server wants of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.complaint import FAULT, Complaint
from corral.cli.fleet.place import agent_data_option, agent_folder

if TYPE_CHECKING:
    from corral.agent.place import Credential
    from corral.core.cluster.topology import NodeSpec
    from corral.wire.config import Config


@click.command()
@agent_data_option
@click.option("--fake-gpus", metavar="8xH100", default=None, help="Simulated GPUs instead of those of this machine.")
@click.option(
    "--path", "path", metavar="RACK/SWITCH", default="", help="Where it stands: a name for each level of the topology."
)
@click.option(
    "--config",
    metavar="FILE",
    default=None,
    envvar="CORRAL_CONFIG",
    show_envvar=True,
    help="A configuration; of it, health, containers, logs and topology.labels matter here.",
)
@click.option(
    "--account",
    metavar="ACCOUNT",
    default=None,
    envvar="CORRAL_ACCOUNT",
    show_envvar=True,
    help="The account of this machine for tasks that name none; without it an agent that is root refuses them.",
)
@click.option(
    "--address",
    metavar="HOST",
    default="",
    help="Address at which other machines reach this one; otherwise that with which it reaches the server.",
)
@click.option("--cpus", type=click.IntRange(min=1), default=None, help="CPUs to give to tasks; otherwise all.")
@click.option("--memory-mib", type=click.IntRange(min=1), default=None, help="Memory for tasks; otherwise all.")
def agent(
    data: str | None,
    fake_gpus: str | None,
    path: str,
    config: str | None,
    account: str | None,
    address: str,
    cpus: int | None,
    memory_mib: int | None,
) -> int:
    """Run the agent of this machine, which has joined before (corral node join). Speaks only outward, to the server.

    Ctrl-C stops it; tasks go on for the length of a lease, and an agent that begins before takes them up again.
    """
    from msgspec.structs import replace

    from corral.agent.place import AgentPlace, BadPlace

    folder = agent_folder(data)
    try:
        credential = AgentPlace(folder).credential()
    except BadPlace as error:
        raise Complaint(str(error).rstrip("."), exit_code=FAULT) from None
    said = with_account(_config(config), account)
    labels = dict(said.topology.labels)
    path = path or "/".join(labels[level] for level in said.settings.levels if level in labels)
    spec = replace(node_spec(credential.node, fake_gpus, path, cpus, memory_mib), address=_checked(address))
    return run_agent(folder, credential, spec, said)


def _checked(address: str) -> str:
    from corral.wire.hosts import is_address

    if address and not is_address(address):
        raise Complaint(f"--address cannot be {address!r}", "give an IP address or the name of a host")
    return address


def _config(path: str | None) -> Config:
    from corral.cli.serve.config import read_file
    from corral.wire.config import Config

    return Config() if path is None else read_file(path)


def with_account(config: Config, account: str | None) -> Config:
    """``account``: what tasks run as that name none."""
    from msgspec import structs

    return structs.replace(config, accounts=structs.replace(config.accounts, default=account)) if account else config


def node_spec(name: str, fake_gpus: str | None, path: str, cpus: int | None, memory_mib: int | None) -> NodeSpec:
    from msgspec import structs

    from corral.backends.gpus import simulated
    from corral.backends.inventory import inventory
    from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts

    try:
        gpus = None if fake_gpus is None else simulated(fake_gpus)
    except ValueError as error:
        raise Complaint(f"--fake-gpus: {error}", "write it like 8xH100 or 4xH100,4xA100") from None
    if gpus is not None:  # two machines of a test fleet must not seem to share their GPUs
        gpus = tuple(Gpu(f"{gpu.uuid}@{name}", gpu.model, gpu.vram_mib, gpu.island) for gpu in gpus)
    found = inventory(name, gpus)
    stated = dict(found.amounts)
    stated |= {} if cpus is None else {CPU_MILLI: cpus * 1000}
    stated |= {} if memory_mib is None else {MEMORY_MIB: memory_mib}
    where = tuple(part for part in path.split("/") if part)
    return structs.replace(found, amounts=amounts(stated), path=where)


def run_agent(folder: Path, credential: Credential, node: NodeSpec, config: Config, leave_ms: int | None = None) -> int:
    """Until it is asked to stop. ``leave_ms``: the machine is then to be empty, and has so long to become so."""
    import logging
    import signal
    import sys
    import threading

    from msgspec.structs import replace

    from corral.agent.address import own_address
    from corral.agent.gateway_line import GatewayLine
    from corral.agent.place import AgentPlace
    from corral.agent.renewal import CredentialRenewal
    from corral.agent.servers import Servers
    from corral.agent.start import Busy, begin
    from corral.cli.serve.machine import container_settings, local_settings

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        servers = Servers(credential.urls, credential.token, cafile=credential.cafile)
    except OSError as error:
        what = f"the authority of the server in {credential.cafile} cannot be read: {error}"
        raise Complaint(what, "put it back, or join again with --ca", exit_code=FAULT) from None
    node = replace(node, address=node.address or own_address(credential.urls))
    line = GatewayLine(credential.node, servers, credential.token, credential.gateways)
    try:
        running = begin(folder, node, line, config.health, local_settings(config), container_settings(config))
    except Busy as error:
        raise Complaint(str(error), "stop it first: systemctl stop corral-agent", exit_code=FAULT) from None
    asked, running.is_lent = threading.Event(), leave_ms is not None

    def use(token: str) -> None:
        servers.use(token)
        line.use(token)

    renewal = CredentialRenewal(AgentPlace(folder), credential, servers.renew, use)
    renewal.begin()

    def ask(*_: object) -> None:
        running.expect_leave()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    while not asked.wait(0.2) and not running.wait(0):
        pass
    if leave_ms is not None and running.failed is None:
        running.leave(leave_ms)
    renewal.stop()
    running.stop()
    if running.failed is not None:
        hint = f"corral node token {credential.node} on the server, then corral node join --replace here"
        raise Complaint(f"the server does not know this agent any more: {running.failed}", hint, exit_code=FAULT)
    return 0
