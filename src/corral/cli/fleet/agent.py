"""``corral agent``: run the tasks that the server assigns to this node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import FAULT, Complaint
from corral.cli.fleet.agent_folder import agent_data_option, agent_folder

if TYPE_CHECKING:
    from corral.agent.agent_dir import AgentCredential
    from corral.agent.join_servers import JoinServers
    from corral.core.cluster.topology import NodeSpec
    from corral.wire.config import Config


@click.command()
@agent_data_option
@click.option("--fake-gpus", metavar="8xH100", help="Simulate these GPUs instead of using real ones.")
@click.option("--path", "path", metavar="RACK/SWITCH", default="", help="Topology domains of this node, one per level.")
@click.option(
    "--config",
    metavar="FILE",
    envvar="CORRAL_CONFIG",
    show_envvar=True,
    help="Configuration file; the agent reads only health, containers, logs and topology.labels.",
)
@click.option(
    "--account",
    metavar="ACCOUNT",
    envvar="CORRAL_ACCOUNT",
    show_envvar=True,
    help="Account for tasks of users who have none; without it, an agent that runs as root refuses them.",
)
@click.option(
    "--address",
    metavar="HOST",
    default="",
    help="Address at which other nodes reach this one; default: the one used to reach the server.",
)
@click.option("--cpus", type=click.IntRange(min=1), metavar="N", help="CPUs available to tasks; default: all.")
@click.option(
    "--memory-mib", type=click.IntRange(min=1), metavar="N", help="Memory available to tasks, in MiB; default: all."
)
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
    """Run the agent of this node, after corral node join. It only connects outward, to the server.

    Ctrl-C stops it. Tasks continue for the length of a lease; an agent that starts again in time picks them up.
    """
    from msgspec.structs import replace

    from corral.agent.agent_dir import AgentDir, BadAgentDir

    folder = agent_folder(data)
    try:
        credential = AgentDir(folder).credential()
    except BadAgentDir as error:
        raise Complaint(str(error).rstrip("."), exit_code=FAULT) from None
    effective = with_account(_config(config), account)
    labels = dict(effective.topology.labels)
    path = path or "/".join(labels[level] for level in effective.settings.levels if level in labels)
    spec = replace(node_spec(credential.node, fake_gpus, path, cpus, memory_mib), address=_checked(address))
    return run_agent(folder, credential, spec, effective)


def _checked(address: str) -> str:
    from corral.wire.host_names import is_address

    if address and not is_address(address):
        raise Complaint(f"--address cannot be {address!r}", "give an IP address or the name of a host")
    return address


def _config(path: str | None) -> Config:
    from corral.cli.serve.config import read_file
    from corral.wire.config import Config

    return Config() if path is None else read_file(path)


def with_account(config: Config, account: str | None) -> Config:
    """``account``: runs tasks that name no account."""
    from msgspec import structs

    return structs.replace(config, accounts=structs.replace(config.accounts, default=account)) if account else config


def node_spec(name: str, fake_gpus: str | None, path: str, cpus: int | None, memory_mib: int | None) -> NodeSpec:
    from msgspec import structs

    from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts
    from corral.runtime.gpus import simulated
    from corral.runtime.inventory import inventory

    try:
        gpus = None if fake_gpus is None else simulated(fake_gpus)
    except ValueError as error:
        raise Complaint(f"--fake-gpus: {error}", "write it like 8xH100 or 4xH100,4xA100") from None
    if gpus is not None:  # GPU ids must differ between two agents on one machine
        gpus = tuple(Gpu(f"{gpu.uuid}@{name}", gpu.model, gpu.vram_mib, gpu.island) for gpu in gpus)
    found = inventory(name, gpus)
    stated = dict(found.amounts)
    stated |= {} if cpus is None else {CPU_MILLI: cpus * 1000}
    stated |= {} if memory_mib is None else {MEMORY_MIB: memory_mib}
    where = tuple(part for part in path.split("/") if part)
    return structs.replace(found, amounts=amounts(stated), path=where)


def run_agent(
    folder: Path, credential: AgentCredential, node: NodeSpec, config: Config, leave_ms: int | None = None
) -> int:
    """Run until SIGTERM or SIGINT. ``leave_ms``: time for tasks to leave the node after that; None: they stay."""
    import logging
    import signal
    import sys
    import threading

    from msgspec.structs import replace

    from corral.agent.agent_dir import AgentDir, KnownGateway
    from corral.agent.gateway_connection import GatewayConnection
    from corral.agent.own_address import own_address
    from corral.agent.renewal import CredentialRenewal
    from corral.agent.startup import Busy, begin
    from corral.agent.step_relay import StepRelay
    from corral.cli.serve.machine_settings import container_settings, local_settings

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    servers = _servers(credential)
    node = replace(node, address=node.address or own_address(credential.urls))
    place = AgentDir(folder)
    last = place.gateway(credential.urls)
    line = GatewayConnection(
        credential.node,
        servers,
        credential.token,
        credential.gateways,
        None if last is None else (last.host, last.port, last.tls),
        lambda known: place.keep_gateway(KnownGateway(credential.urls, *known)),
    )
    try:
        running = begin(folder, node, line, config.health, local_settings(config), container_settings(config))
    except Busy as error:
        raise Complaint(str(error), "stop it first: systemctl stop corral-agent", exit_code=FAULT) from None
    asked, running.is_lent = threading.Event(), leave_ms is not None
    relay = StepRelay(str(folder / "run"), servers)
    relay.begin()
    running.on_streams = relay.answer

    def use(token: str) -> None:
        servers.use(token)
        line.use(token)

    renewal = CredentialRenewal(place, credential, servers.renew, use)
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
    relay.stop()
    running.stop()
    if running.failed is not None:
        hint = f"run corral node token {credential.node} on the server, then corral node join --replace here"
        raise Complaint(f"the server no longer accepts this agent: {running.failed}", hint, exit_code=FAULT)
    return 0


def _servers(credential: AgentCredential) -> JoinServers:
    from corral.agent.join_servers import JoinServers

    try:
        return JoinServers(credential.urls, credential.token, cafile=credential.cafile)
    except OSError as error:
        what = f"cannot read the certificate authority in {credential.cafile}: {error}"
        raise Complaint(what, "put it back, or join again with --ca", exit_code=FAULT) from None
