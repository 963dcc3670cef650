"""``corral pilot``: what a provider starts on a node: join once, run the agent, leave in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import rich_click as click

from corral.cli.errors import FAULT, Complaint
from corral.cli.fleet.agent_folder import agent_data_option, agent_folder
from corral.cli.option_types import Span

if TYPE_CHECKING:
    from corral.agent.agent_dir import AgentCredential, AgentDir

T = TypeVar("T")

TOKEN = "CORRAL_JOIN_TOKEN"
_JOIN_S = 300.0  # wait for a server that is being restarted
_RETRY_S = 0.5


@click.command()
@agent_data_option
@click.option("--server", "urls", metavar="URL", multiple=True, required=True, help="URL of the server.")
@click.option("--name", metavar="NAME", required=True, help="Name of the node.")
@click.option("--ca", "cafile", metavar="FILE", default="", help="Certificate authority of the server.")
@click.option(
    "--granted-by",
    metavar="PROVIDER",
    default="",
    help="Offer what this provider has allocated, as stated in the environment.",
)
@click.option("--fake-gpus", metavar="8xH100", help="Simulate these GPUs instead of using real ones.")
@click.option("--path", metavar="RACK/SWITCH", default="", help="Topology domains of this node.")
@click.option(
    "--grace",
    type=Span(),
    metavar="TIME",
    default="30s",
    show_default=True,
    help="After SIGTERM: time for jobs on this node to save and stop.",
)
def pilot(
    data: str | None,
    urls: tuple[str, ...],
    name: str,
    cafile: str,
    granted_by: str,
    fake_gpus: str | None,
    path: str,
    grace: int,
) -> int:
    """Run this machine as a node for as long as its provider allocates it. Started by providers, not by people.

    The token to join with is in the environment (CORRAL_JOIN_TOKEN). Started again in the same folder it
    continues as the same node. On SIGTERM the pilot notifies the server; jobs save and leave; then the pilot ends.
    """
    from msgspec import structs

    from corral.agent.agent_dir import AgentDir, BadAgentDir
    from corral.cli.fleet.agent import node_spec, run_agent
    from corral.providers.allocation import granted, offered
    from corral.wire.config import Config

    folder = agent_folder(data)
    token = os.environ.pop(TOKEN, "")
    place = AgentDir(folder)
    try:
        credential = place.credential() if place.has_credential() else _join(place, urls, name, token, cafile)
    except BadAgentDir as error:
        raise Complaint(str(error).rstrip("."), exit_code=FAULT) from None
    try:
        grant = granted(granted_by, os.environ)
    except ValueError as error:
        raise Complaint(f"--granted-by: {error}") from None
    spec = node_spec(credential.node, fake_gpus, path or "/".join(grant.path), grant.cpus, grant.memory_mib)
    spec = structs.replace(spec, gpus=offered(spec.gpus, grant))
    return run_agent(folder, credential, spec, Config(), leave_ms=grace)


def _join(place: AgentDir, urls: tuple[str, ...], name: str, token: str, cafile: str) -> AgentCredential:
    from corral.agent.agent import urls_of
    from corral.agent.agent_dir import AgentCredential
    from corral.agent.join_servers import JoinServers
    from corral.agent.renewal import renew_at
    from corral.agent.server_connection import NoAnswer, Refused
    from corral.remote.messages import JoinAnswer, JoinBody

    if not token:
        raise Complaint(f"there is no token to join with: {TOKEN} is not set", exit_code=FAULT)
    servers = JoinServers(urls_of(urls), token, cafile=cafile)
    try:
        answer = _answered(lambda: servers.join(JoinBody(name), JoinAnswer), NoAnswer)
    except Refused as error:
        raise Complaint(f"the server refused: {error}", error.hint, exit_code=FAULT) from None
    except NoAnswer as error:
        raise Complaint(str(error), "check the address of the server", exit_code=FAULT) from None
    due = renew_at(time.time_ns() // 1_000_000, answer.expires_ms)
    credential = AgentCredential(answer.node, urls_of(urls), answer.token, cafile, renew_ms=due)
    place.keep_credential(credential)
    return credential


def _answered(ask: Callable[[], T], lost: type[Exception]) -> T:
    """Retries: the server may be restarting."""
    end = time.monotonic() + _JOIN_S
    while True:
        try:
            return ask()
        except lost:
            if time.monotonic() > end:
                raise
        time.sleep(_RETRY_S)
